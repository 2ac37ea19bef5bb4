"""Mistakes in IPv4 packets: another version, a wrong checksum, a segment size that grows."""

from __future__ import annotations

import socket
import struct

import pytest

from trainer.link_switch.packets import SYN, addresses, limit_segments, opens_connection

SOURCE, TO = (socket.inet_aton(text) for text in ("172.18.0.2", "172.18.0.3"))
ACK = 0x10


def checksum(data: bytes) -> int:
    """The one's complement sum of RFC 1071, which is 0 over data with its own checksum."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def checksum_of_segment(packet: bytes) -> int:
    """Of the TCP segment with its pseudo header: 0 if it is valid."""
    segment = packet[(packet[0] & 0xF) * 4 :]
    return checksum(packet[12:20] + struct.pack("!HH", socket.IPPROTO_TCP, len(segment)) + segment)


def packet(
    flags: int = SYN, options: bytes = b"", protocol: int = socket.IPPROTO_TCP, ip_options: bytes = b""
) -> bytes:
    options += b"\0" * (-len(options) % 4)
    offset, words = (20 + len(options)) << 2, 5 + len(ip_options) // 4
    tcp = struct.pack("!HHIIBBHHH", 1000, 2000, 7, 0, offset, flags, 65535, 0, 0) + options
    length = 4 * words + len(tcp)
    ip = struct.pack("!BBHHHBBH", 0x40 + words, 0, length, 0, 0, 64, protocol, 0) + SOURCE + TO + ip_options
    summed = checksum_of_segment(ip + tcp)
    return ip + tcp[:16] + summed.to_bytes(2) + tcp[18:]


def mss(size: int) -> bytes:
    return struct.pack("!BBH", 2, 4, size)


def test_addresses_and_openings_of_connections() -> None:
    assert addresses(packet()) == (SOURCE, TO)
    assert addresses(packet()[:20]) == (SOURCE, TO)
    for odd in (b"\x60" + bytes(39), b"", packet()[:19]):  # the first one is IPv6
        assert addresses(odd) is None
    openings = {SYN: True, SYN | ACK: True, ACK: False}
    assert {flags: opens_connection(packet(flags)) for flags in openings} == openings
    assert opens_connection(packet(ip_options=bytes(8)))
    assert not opens_connection(packet(SYN, protocol=socket.IPPROTO_UDP))
    assert not opens_connection(packet()[:39])


@pytest.mark.parametrize("before", [b"", b"\1", b"\1\1", b"\4\2", b"\3\3\7", b"\1\3\3\7"])
def test_a_segment_size_is_limited_wherever_its_option_is(before: bytes) -> None:
    for ip_options in (b"", bytes(4)):
        original = packet(options=before + mss(64960) + b"\x08\x0a" + bytes(8), ip_options=ip_options)
        assert checksum_of_segment(original) == 0
        changed = limit_segments(original, 6210)
        assert mss(6210) in changed
        assert len(changed) == len(original)
        assert checksum_of_segment(changed) == 0


@pytest.mark.parametrize(
    "options",
    [b"", mss(1460), mss(6210), b"\0" + mss(64960), b"\2\4", b"\3\0\0\0", b"\2\3\1\1", b"\1\1\1\2"],
)
def test_other_options_and_smaller_sizes_stay_as_they_are(options: bytes) -> None:
    original = packet(options=options)
    assert limit_segments(original, 6210) == original
