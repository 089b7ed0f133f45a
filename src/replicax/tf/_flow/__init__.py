"""`cond`, `while_loop`, `map_fn` and `TensorArray` for code that reads and writes variables."""
