"""What a peer of transport tcp says first, for tests that speak by bytes (native/tcp_wire.hpp)."""

import struct

HELLO = struct.pack("<QII", 0x32504354534C4848, 0, 0)
