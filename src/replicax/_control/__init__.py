"""The channel of a cluster: rendezvous, messages and the watchdog, apart from the devices' network.

Small values travel over TCP through the chief, as JSON, never as code. The arrays of a step travel
between the devices, see `_mesh`. Other rooms know the channel by `_core/channel.py` alone;
`_mesh/processes.py` opens it.
"""

from replicax._control._channel import ClusterChannel as ClusterChannel
from replicax._control._ending import note_exit as note_exit
from replicax._control._heartbeat import Limits as Limits
from replicax._control._heartbeat import Ticks as Ticks
from replicax._control._rendezvous import open_channel as open_channel
from replicax._control._rendezvous import split as split
from replicax._control._rendezvous import wait_until_open as wait_until_open
from replicax._control._watchdog import EXIT_CODE as EXIT_CODE
