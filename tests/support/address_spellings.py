"""Known spellings of an address in a URL, and samples of every range that may not be dialled."""

from ipaddress import IPv4Address, IPv6Address

from holdfast.core.addresses import IpAddress, Range

FULL_WIDTH = {ord("0") + digit: 0xFF10 + digit for digit in range(10)}


def samples(row: Range) -> list[IpAddress]:
    """The first, the middle and the last address of a range."""
    first, last = int(row.network[0]), int(row.network[-1])
    kind = type(row.network[0])
    return sorted({kind(first), kind((first + last) // 2), kind(last)})


def plain(address: IpAddress) -> list[str]:
    """Valid spellings; some lead to the address only through a translator or a tunnel."""
    if isinstance(address, IPv6Address):
        exploded = address.exploded
        dotted = f"{exploded[:30]}{IPv4Address(int(address) & 0xFFFFFFFF)}"
        return [f"[{text}]" for text in (str(address), str(address).upper(), exploded, exploded.upper(), dotted)]
    number = int(address)
    high, low = f"{number >> 16:x}", f"{number & 0xFFFF:x}"
    inside = [
        *(f"::ffff:{address}", f"::FFFF:{high}:{low}", f"0:0:0:0:0:ffff:{high}:{low}"),
        *(f"::{address}", f"::ffff:0:{address}", f"64:ff9b::{address}", f"64:ff9b:1::{address}"),
        *(
            f"2002:{high}:{low}::",
            f"2001:0:{high}:{low}::",
            str(IPv6Address((0x20010000_01010101 << 64) + (number ^ 0xFFFFFFFF))),
        ),
    ]
    return [str(address), *(f"[{text}]" for text in inside)]


def numeric(address: IPv4Address) -> list[str]:
    """Odd spellings that the C library reads as this address, without a look-up."""
    number, parts = int(address), [int(part) for part in str(address).split(".")]
    a, b = parts[:2]
    return [
        *(f"{number}", f"0x{number:x}", f"0X{number:08X}", f"0{number:o}"),
        *(".".join(style % part for part in parts) for style in ("0%o", "0x%x", "0X%02X", "%#010x", "000%o")),
        *(f"{a}.{number & 0xFFFFFF}", f"{a}.{b}.{number & 0xFFFF}", f"0x{a:x}.{number & 0xFFFFFF}"),
    ]


def odd(address: IpAddress) -> list[str]:
    """Invalid spellings, which must be refused."""
    text = str(address)
    if isinstance(address, IPv6Address):
        bracketed = f"[{text}]"
        return [
            *(f"[{text}%25eth0]", f"[{text}%eth0]", f"[{text}%2525]", text, f"{bracketed}.", f"[{bracketed}]"),
            *(bracketed.replace(":", "："), bracketed.replace(":", "%3a"), f"%5b{text}%5d", f"[{text}", f"[v6.{text}]"),
        ]
    full_width = text.translate(FULL_WIDTH)
    return [
        *numeric(address),
        *(full_width, full_width.replace(".", "．"), text[:-1] + full_width[-1]),
        *(text.replace(".", dot) for dot in "。．｡․"),
        *(f"[{text}]", f"{text}.", f"{text}..", f".{text}", text.replace(".", ".."), f"{text}.0"),
        *(
            text.replace(".", "%2e"),
            f"%{ord(text[0]):x}{text[1:]}",
            f"{text}%00",
            f"{text}\\",
            f"x@{text}",
            f"{text}:80:80",
        ),
    ]
