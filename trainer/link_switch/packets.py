"""IPv4 packets, as a TUN device delivers them."""

from __future__ import annotations

from socket import IPPROTO_TCP

SYN = 0x02
MSS_OPTION = 2


def addresses(packet: bytes) -> tuple[bytes, bytes] | None:
    """Source and destination, 4 bytes each; None if it is no IPv4 packet."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return None
    return packet[12:16], packet[16:20]


def opens_connection(packet: bytes) -> bool:
    """Whether an IPv4 packet opens a TCP connection, or accepts one."""
    start = (packet[0] & 0x0F) * 4
    return packet[9] == IPPROTO_TCP and len(packet) >= start + 20 and bool(packet[start + 13] & SYN)


def limit_segments(packet: bytes, size: int) -> bytes:
    """A packet that opens a connection, with a maximum segment size of at most `size` bytes, below 65,536.

    The receiver of the packet then sends no larger segments.
    """
    start = (packet[0] & 0x0F) * 4
    end = min(start + (packet[start + 12] >> 4) * 4, len(packet))
    at = start + 20
    while at + 1 < end and packet[at] != 0:
        if packet[at] == 1:  # padding of one byte
            at += 1
            continue
        length = packet[at + 1]
        if packet[at] == MSS_OPTION and length == 4 and at + 4 <= end:
            old = int.from_bytes(packet[at + 2 : at + 4])
            return packet if old <= size else _replace(packet, at + 2, size, start)
        at += max(length, 2)
    return packet


def _replace(packet: bytes, at: int, value: int, tcp: int) -> bytes:
    """The packet with another 16-bit number at `at` in the TCP header, which starts at `tcp`.

    The checksum is updated as in RFC 1624, equation 3; options may begin at an odd address.
    """
    changed = bytearray(packet)
    changed[at : at + 2] = value.to_bytes(2)
    begin = at - (at - tcp) % 2  # of the 16-bit words of the checksum
    stop = at + 2 + (at - tcp) % 2
    checksum = ~int.from_bytes(packet[tcp + 16 : tcp + 18]) & 0xFFFF
    for word in range(begin, stop, 2):
        checksum += ~int.from_bytes(packet[word : word + 2]) & 0xFFFF
        checksum += int.from_bytes(changed[word : word + 2])
    while checksum >> 16:
        checksum = (checksum & 0xFFFF) + (checksum >> 16)
    changed[tcp + 16 : tcp + 18] = (~checksum & 0xFFFF).to_bytes(2)
    return bytes(changed)
