"""Parameter servers: variables that live in other processes, and the workers that train them."""
