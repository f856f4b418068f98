"""WAL in the page codec, as FORMAT.md has it: pages of PostgreSQL's WAL from records by shape."""
import struct
from bisect import bisect_right
from collections import namedtuple
from streams import Damage, Stream, byte_stream, number_stream, unzigzag

EXPECTED, OWN, ZERO, RAW = range(4)
FIRST_IS_CONTRECORD, LONG_HEADER, BKP_REMOVABLE = 1, 2, 4
HAS_IMAGE, HAS_DATA, SAME_REL, HAS_HOLE = 0x10, 0x20, 0x80, 1
COMPRESSED, SHORT, LONG = 2, 1, 2
HAS_ORIGIN, HAS_TOP_XID, MAIN_SHIFT = 1, 2, 2
PREVIOUS_STORED, CRC_STORED = 1, 2
TEXT_CLASS, CLASS_COUNT, CLASS_LENGTH = 255, 8, 1024
BYTE_STREAMS = "page state, item, record flags, image kind"
TEXT_STREAMS = "page header, raw page, raw body, raw image"
NUMBER_STREAMS = "item length, xid, CRC, origin, top xid, image length, hole offset, hole length"

Header = namedtuple("Header", "magic info timeline address rest")
Shape = namedtuple("Shape", "rmid info bits relation blocks main")
Block = namedtuple("Block", "id flags image image_info relations are_steps numbers data tuple_counts tuples tuple_gaps")


def crc_table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        yield value


CRC_TABLE = tuple(crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[crc & 255 ^ byte] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Bodies:
    """Reads bodies and rows; `in_text` gives what stands next in the frame's text."""

    def __init__(self, reader, in_text):
        self.reader, self.in_text = reader, in_text

    def next(self):
        lengths, first = number_stream(self.reader, 32), self.reader.varint()
        bodies = self.rows(len(lengths), first) if first else [b""] * len(lengths)
        classes, in_text = {}, []
        for place, length in enumerate(lengths):
            if length < first:
                raise Damage("a body shorter than the rows of all")
            if length > first:
                classes.setdefault(length - first, []).append(place)
        for length, places in sorted(classes.items()):
            if self.is_text(length, len(places)):
                in_text.append((length, places))
                continue
            for place, rest in zip(places, self.rows(len(places), length)):
                bodies[place] += rest
        text = Stream(self.in_text())
        for length, places in in_text:
            for place in places:
                bodies[place] += text.take(length)
        if text.rest():
            raise Damage("bodies of another length than they say")
        return Stream(bodies)

    def is_text(self, length, count):
        if count < CLASS_COUNT or length > CLASS_LENGTH:
            return True
        is_text = self.reader.u8() == TEXT_CLASS
        self.reader.used -= not is_text
        return is_text

    def rows(self, count, length):
        reader, plan = self.reader, []
        while length > 0:
            width = reader.u8()
            if width not in (0, 1, 2, 4, 8):
                raise Damage("a column of an unknown width")
            plan.append((width, width or reader.varint()))
            length -= plan[-1][1]
        if length < 0:
            raise Damage("columns that are wider than their rows")
        constants, parts = Stream(self.in_text()), []
        for width, size in plan:
            if width == 0:
                parts.append([constants.take(size)] * count)
                continue
            numbers = byte_stream(reader) if width == 1 else number_stream(reader, 64 if width == 8 else 32)
            if len(numbers) != count:
                raise Damage("a column of another count than its rows")
            parts.append([number.to_bytes(width, "little") for number in numbers])
        return [b"".join(parts) for parts in zip(*parts)]


class Wal:
    """The WAL of a frame; `page` makes the next page of a kind of layout, size and block number."""

    def __init__(self, reader, in_text, page):
        self.page, self.bodies = page, Bodies(reader, in_text)
        power = reader.u8()
        self.image_size = 1 << power if power else 0
        heads = [self.read_shape(reader) for _ in range(reader.varint())]
        self.relations = [reader.take(12) for _ in range(reader.varint())]
        self.streams = {name: Stream(byte_stream(reader)) for name in BYTE_STREAMS.split(", ")}
        self.streams |= {name: Stream(in_text()) for name in TEXT_STREAMS.split(", ")}
        self.streams |= {name: Stream(number_stream(reader, 32)) for name in NUMBER_STREAMS.split(", ")}
        self.streams["previous"] = Stream(number_stream(reader, 64))
        self.shapes = [self.read_streams(reader, *head) for head in heads]
        self.last_numbers = {}

    @staticmethod
    def read_shape(reader):
        rmid, info, bits, count = reader.take(4)
        relation = reader.varint()
        return rmid, info, bits, relation, [reader.take(4) for _ in range(count)]

    def read_streams(self, reader, rmid, info, bits, relation, heads):
        blocks, has_tuples = [], rmid == 9 and info & 0x70 == 0x50
        for number, head in enumerate(heads):
            flags, data, tuple_counts, tuples, gaps = head[1], None, None, None, None
            relations = None if flags & SAME_REL else Stream(number_stream(reader, 32))
            are_steps, numbers = reader.u8(), Stream(number_stream(reader, 32))
            if flags & HAS_DATA:
                data = self.bodies.next()
                if has_tuples:
                    tuple_counts, tuples, gaps = Stream(number_stream(reader, 32)), self.bodies.next(), Stream(byte_stream(reader))
            blocks.append(Block(*head, relations, are_steps, numbers, data, tuple_counts, tuples, gaps))
        return Shape(rmid, info, bits, relation, blocks, self.bodies.next() if bits >> MAIN_SHIFT else None)

    def next(self, name):
        return self.streams[name].next()

    def take(self, name, count):
        return bytes(self.streams[name].take(count))

    def run(self, length, page_size):
        self.read_pages(length, page_size)
        self.body, self.reaches, self.last_lsn = bytearray(), [], 0
        while len(self.body) < self.body_length:
            self.item()
        if len(self.body) != self.body_length:
            raise Damage("items of another length than their pages")
        pieces, starts, number = [], [start for start, _ in self.reaches], 0
        for state, size, piece in self.pages:
            if state in (ZERO, RAW):
                pieces.append(piece)
                continue
            start, header = self.starts[number], piece
            if state == EXPECTED:
                header = self.header_bytes(self.headers[number], start, starts)
            pieces += header, self.body[start:start + size - len(header)]
            number += 1
        return b"".join(pieces)

    def read_pages(self, length, page_size):
        """The pages with a header of their own or an expected one: their headers, and where they start in the body."""
        self.pages, self.headers, self.starts, self.own, at = [], [], [], {}, 0
        for left in range(length, 0, -page_size):
            state, size, piece = self.next("page state"), min(page_size, left), b""
            if state in (ZERO, RAW):
                piece = bytes(size) if state == ZERO else self.take("raw page", size)
            elif state == OWN:
                piece = self.take("page header", 24)
                header = Header(*struct.unpack("<HHIQI", piece[:20]))
                piece += self.take("page header", 16) if header.info & LONG_HEADER else b""
                if header.info & FIRST_IS_CONTRECORD and header.rest:
                    self.own[at] = header.rest
            elif state == EXPECTED:
                before = self.headers[-1]
                address = before.address + page_size & (1 << 64) - 1
                header = Header(before.magic, before.info & BKP_REMOVABLE, before.timeline, address, None)
            else:
                raise Damage("an unknown state of a page")
            self.pages.append((state, size, piece))
            if state in (EXPECTED, OWN):
                self.headers.append(header)
                self.starts.append(at)
                at += size - (len(piece) or 24)
        self.body_length = at

    def header_bytes(self, header, start, starts):
        before = bisect_right(starts, start - 1) - 1
        rest = max(0, self.reaches[before][1] - start) if before >= 0 else 0
        info = header.info | (FIRST_IS_CONTRECORD if rest else 0)
        return struct.pack("<HHIQII", header.magic, info, header.timeline, header.address, rest & 0xFFFFFFFF, 0)

    def lsn(self, at):
        number = bisect_right(self.starts, at) - 1
        header = self.headers[number]
        return header.address + (40 if header.info & LONG_HEADER else 24) + at - self.starts[number] & (1 << 64) - 1

    def item(self):
        number, start = self.next("item"), len(self.body)
        if number == 0:
            raw = self.take("raw body", self.next("item length"))
            reach = int.from_bytes(raw[:4], "little") if len(raw) >= 4 else 0
            self.reaches.append((start, start + self.own.get(start, reach)))
            self.body += raw
        else:
            self.body += self.record(self.shapes[number - 1], start)
            self.reaches.append((start, len(self.body)))
            self.body += bytes(min(-len(self.body) % 8, max(self.body_length - len(self.body), 0)))

    def record(self, shape, start):
        heads, parts, relation = bytearray(), [], None
        for number, block in enumerate(shape.blocks):
            if number == 0 and shape.relation:
                relation = shape.relation - 1
            elif block.relations:
                relation = block.relations.next()
            self.block(block, relation, heads, parts)
        if shape.bits & HAS_ORIGIN:
            heads += struct.pack("<BH", 253, self.next("origin"))
        if shape.bits & HAS_TOP_XID:
            heads += struct.pack("<BI", 252, self.next("top xid"))
        if shape.main:
            main = shape.main.next()
            heads += struct.pack("<BB", 255, len(main)) if shape.bits >> MAIN_SHIFT == SHORT else struct.pack("<BI", 254, len(main))
            parts.append(main)
        return self.finished(shape, bytes(heads) + b"".join(parts), start)

    def finished(self, shape, rest, start):
        flags = self.next("record flags")
        previous = self.next("previous") if flags & PREVIOUS_STORED else self.last_lsn
        self.last_lsn = self.lsn(start)
        fixed = struct.pack("<IIQBBH", 24 + len(rest), self.next("xid"), previous, shape.info, shape.rmid, 0)
        crc = self.next("CRC") if flags & CRC_STORED else crc32c(rest + fixed)
        return fixed + struct.pack("<I", crc) + rest

    def block(self, block, relation, heads, parts):
        number, key = block.numbers.next(), (relation, block.flags & 3)
        if block.are_steps:
            number = self.last_numbers.get(key, 0) + unzigzag(number) & 0xFFFFFFFF
        self.last_numbers[key] = number
        image_head, image = self.image(block, number) if block.image else (b"", b"")
        data = self.data(block) if block.data else b""
        heads += struct.pack("<BBH", block.id, block.flags, len(data)) + image_head
        if not block.flags & SAME_REL:
            heads += self.relations[relation]
        heads += struct.pack("<I", number)
        parts += image, data

    def data(self, block):
        count = block.tuple_counts.next() if block.tuple_counts else 0
        if count == 0:
            return block.data.next()
        data = bytearray()
        for _ in range(count):
            one = block.tuples.next()
            if len(data) % 2:
                data.append(block.tuple_gaps.next())
            data += struct.pack("<H", len(one) - 5) + one
        return bytes(data)

    def image(self, block, number):
        kind, has_hole = self.next("image kind"), block.image_info & HAS_HOLE
        hole_length = b""
        if kind == 0:
            image = self.take("raw image", self.next("image length"))
            hole_at = self.next("hole offset")
            if block.image == COMPRESSED and has_hole:
                hole_length = struct.pack("<H", self.next("hole length"))
        else:
            image, hole_at = self.page(kind, self.image_size, number), 0
            if has_hole:
                hole_at, upper = struct.unpack_from("<HH", image, 12)
                image = image[:hole_at] + image[upper:]
        return struct.pack("<HHB", len(image), hole_at, block.image_info) + hole_length, image
