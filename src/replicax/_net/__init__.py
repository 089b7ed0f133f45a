"""Authenticated connections between the processes of a cluster, with sealed messages.

A `Listener` listens only on the interface of the cluster's address. The handshake makes a
`Session`, which seals every message. `_control` (the workers' channel) and `_ps` (the parameter
servers) use the connections. Only the standard library and NumPy are imported.
"""

from replicax._net.address import at_place as at_place
from replicax._net.address import check_host as check_host
from replicax._net.address import hold as hold
from replicax._net.address import interface_of as interface_of
from replicax._net.address import is_loopback as is_loopback
from replicax._net.connection import BROKEN as BROKEN
from replicax._net.connection import Connection as Connection
from replicax._net.connection import Outbox as Outbox
from replicax._net.frames import REPLY as REPLY
from replicax._net.frames import REQUEST as REQUEST
from replicax._net.frames import Encoded as Encoded
from replicax._net.frames import Garbled as Garbled
from replicax._net.frames import Message as Message
from replicax._net.frames import Reply as Reply
from replicax._net.frames import array_of as array_of
from replicax._net.frames import decode as decode
from replicax._net.frames import encode as encode
from replicax._net.frames import numbers_of as numbers_of
from replicax._net.frames import parse as parse
from replicax._net.frames import raw as raw
from replicax._net.handshake import Caller as Caller
from replicax._net.handshake import Denied as Denied
from replicax._net.handshake import Forged as Forged
from replicax._net.handshake import Refused as Refused
from replicax._net.handshake import Seal as Seal
from replicax._net.handshake import Session as Session
from replicax._net.handshake import in_cluster as in_cluster
from replicax._net.handshake import introduce as introduce
from replicax._net.handshake import printable as printable
from replicax._net.listener import STRANGERS as STRANGERS
from replicax._net.listener import Accepted as Accepted
from replicax._net.listener import Listener as Listener
from replicax._net.relay import Relay as Relay
from replicax._net.requests import ConnectionLost as ConnectionLost
from replicax._net.requests import RemoteError as RemoteError
from replicax._net.requests import RequestClient as RequestClient
from replicax._net.requests import RequestServer as RequestServer
from replicax._net.requests import answering as answering
from replicax._net.secret import HOW_TO as HOW_TO
from replicax._net.secret import Secret as Secret
from replicax._net.secret import given_secret as given_secret
from replicax._net.secret import secret_of_this_machine as secret_of_this_machine
from replicax._net.sockets import connected as connected
from replicax._net.sockets import hang_up as hang_up
from replicax._net.sockets import kept as kept
from replicax._net.sockets import own as own
from replicax._net.sockets import tries as tries
