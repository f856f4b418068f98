"""Decodes frames of the page codec by FORMAT.md and nothing else: decode.py DIRECTORY.

Of each NAME.frame in the directory it makes what NAME.raw holds, and ends with 1 if one comes out otherwise. Its first version was written by
somebody who had seen the document and no code; it changes only with the document. It leaves out the XXH3 and what a reader bounds.
"""
import pathlib, struct, sys
from streams import Damage, Reader, Stream, byte_stream, number_stream, text_stream, unzigzag
from values import EXTERNAL, SHORT, Columns
from wal import Wal

HEAP, INDEX, WAL, GIN, SPGIST = 2, 3, 4, 5, 6
ZERO, RAW_PAGE, SHELL, TUPLES, ALIKE, SPARSE, COPIES = 0, 1, 2, 3, 4, 8, 16
CHECKSUM_ZERO, CHECKSUM_STORED, HOLE, STATES, FIRST_IS_LAST, RANKS, PADDING, TUPLE_STATES = (1 << bit for bit in range(8))
BYTE_STREAMS = "page kinds, page flags, item states, tuple states, nulls"
TEXT_STREAMS = "padding, hole, raw"
NUMBER_STREAMS = (
    "checksum, header flags, prune xid, pointer count, lower, upper, special, rank, redirect, odd item, raw length, rest length, "
    "xmin, xmax, command id, next block, next number, infomask2, infomask, previous, next, tree level, tree flags, tree cycle, "
    "info, row block, row number, row count, list block, list number")
COPY_STREAMS = "copy count, copy skip, copy length, copy distance"
HEAP_FIELDS = "xmin", "xmax", "command id", "next block", "next number", "infomask2", "infomask"
# src/include/storage/checksum_impl.h
CHECKSUM_BASES = (
    0x5B1F36E9, 0xB8525960, 0x02AB50AA, 0x1DE66D2A, 0x79FF467A, 0x9BB9F8A3, 0x217E7CD2, 0x83E13D2C,
    0xF8D4474F, 0xE39EB970, 0x42C6AE16, 0x993216FA, 0x7B093B5D, 0x98DAFF3C, 0xF718902A, 0x0B1C9CDB,
    0xE58F764B, 0x187636BC, 0x5D7B3BB1, 0xE73DE7DE, 0x92BEC979, 0xCCA6C0B2, 0x304A0979, 0x85AA43D4,
    0x783125BB, 0x6CA8EAA2, 0xE407EAC6, 0x4B5CFC3E, 0x9FBF8C76, 0x15CA20BE, 0xF2CA9FD3, 0x959BD756)
CHECKSUM_PRIME = 16777619


def checksum(page, block):
    words, together = struct.unpack(f"<{len(page) // 4}I", page), 0
    for number, total in enumerate(CHECKSUM_BASES):
        for word in words[number::32] + (0, 0):
            mixed = total ^ word
            total = mixed * CHECKSUM_PRIME & 0xFFFFFFFF ^ mixed >> 17
        together ^= total
    return (together ^ block) % 65535 + 1


def padded(length, alignment):
    return length + -length % alignment


def row(block, number):
    return struct.pack("<HHH", block >> 16, block & 0xFFFF, number & 0xFFFF)


class Frame:
    """The body of a frame of pages."""

    def __init__(self, body):
        reader = Reader(body)
        self.layouts = [self.read_layout(reader) for _ in range(reader.varint())]
        self.runs = []
        for _ in range(reader.varint()):
            length, layout = reader.varint(), reader.varint()
            self.runs.append((length, layout, reader.varint() if layout else 0))
        text = Reader(text_stream(reader))

        def in_text():
            return text.take(reader.varint())

        self.streams = {name: Stream(byte_stream(reader)) for name in BYTE_STREAMS.split(", ")}
        self.streams |= {name: Stream(in_text()) for name in TEXT_STREAMS.split(", ")}
        names = NUMBER_STREAMS.split(", ")
        if any(kind & COPIES for kind in self.streams["page kinds"].values):
            names += COPY_STREAMS.split(", ")
        self.streams |= {name: Stream(number_stream(reader, 32)) for name in names}
        self.streams["LSN"] = Stream(number_stream(reader, 64))
        columns = Columns(reader, in_text)
        self.columns = [columns.of_layout(kind, attributes) for kind, _, attributes in self.layouts]
        if any(kind == WAL for kind, _, _ in self.layouts):
            self.wal = Wal(reader, in_text, lambda kind, size, block: Page(self, kind, size, [], block).made())
        if reader.rest() or text.rest():
            raise Damage("bytes are left over")

    @staticmethod
    def read_layout(reader):
        kind, page_size, attributes = reader.u8(), 1 << reader.u8(), []
        for _ in range(reader.varint()):
            packed, length = reader.u8(), reader.varint() - 1
            attributes.append((packed & 15, 1 << (packed >> 4), length))
        return kind, page_size, attributes

    def next(self, name):
        return self.streams[name].next()

    def take(self, name, count):
        return bytes(self.streams[name].take(count))

    def content(self):
        self.last_row, pieces = (0, 0), []
        for length, layout, first in self.runs:
            if layout:
                kind, page_size, attributes = self.layouts[layout - 1]
                if kind == WAL:
                    pieces.append(self.wal.run(length, page_size))
                    continue
                columns = list(zip(attributes, self.columns[layout - 1]))
                for number in range(length // page_size):
                    block = first + number & 0xFFFFFFFF
                    pieces.append(Page(self, kind, page_size, columns, block).made())
                length %= page_size
            pieces.append(self.take("raw", length))
        return b"".join(pieces)


class Page:
    """One page of a layout."""

    def __init__(self, frame, kind, size, columns, block):
        self.next, self.take, self.frame = frame.next, frame.take, frame
        self.kind, self.size, self.columns, self.block = kind, size, columns, block

    def made(self):
        page_kind = self.next("page kinds")
        if page_kind == ZERO:
            return bytes(self.size)
        if page_kind == RAW_PAGE:
            return self.take("raw", self.size)
        is_sparse, has_copies = page_kind & SPARSE, page_kind & COPIES
        page_kind -= is_sparse + has_copies
        if page_kind not in ((TUPLES, ALIKE) if has_copies else (SHELL, TUPLES, ALIKE)):
            raise Damage("a page of an unknown kind")
        self.page, self.flags, self.is_alike = bytearray(self.size), self.next("page flags"), page_kind == ALIKE
        lsn, header_flags, prune_xid = self.next("LSN"), self.next("header flags"), self.next("prune xid")
        lower, upper, special = self.shell() if page_kind == SHELL else self.tuples()
        struct.pack_into("<II", self.page, 0, lsn >> 32, lsn & 0xFFFFFFFF)
        struct.pack_into("<HHHHHI", self.page, 10, header_flags, lower, upper, special, self.size + 4, prune_xid)
        if self.flags & HOLE:
            self.hole(lower, upper, is_sparse, has_copies)
        if self.flags & CHECKSUM_STORED:
            stored = self.next("checksum")
        else:
            stored = 0 if self.flags & CHECKSUM_ZERO else checksum(bytes(self.page), self.block)
        struct.pack_into("<H", self.page, 8, stored)
        return bytes(self.page)

    def shell(self):
        lower, upper, special = self.next("lower"), self.next("upper"), self.next("special")
        self.page[24:lower] = self.take("raw", lower - 24)
        self.page[upper:] = self.take("raw", self.size - upper)
        return lower, upper, special

    def hole(self, lower, upper, is_sparse, has_copies):
        count = self.next("copy count") if has_copies else 0
        copies = list(zip(*([self.next(name) for _ in range(count)] for name in COPY_STREAMS.split(", ")[1:])))
        left = upper - lower - sum(length for _, length, _ in copies)
        rest = b"" if left == 0 else self.sparse(left) if is_sparse else self.take("hole", left)
        for skip, length, distance in copies:
            self.page[lower:lower + skip], rest = rest[:skip], rest[skip:]
            lower += skip + length
            self.page[lower - length:lower] = self.page[lower - length + distance:lower + distance]
        self.page[lower:upper] = rest

    def sparse(self, length):
        hole = bytearray()
        while len(hole) < length:
            zeros, others = self.next("hole"), self.next("hole")
            hole += bytes(min(64 * zeros, length - len(hole)))
            hole += self.take("hole", min(64 * others, length - len(hole)))
        return hole

    def tuples(self):
        count = self.next("pointer count")
        lower, special = 24 + 4 * count, self.size - {HEAP: 0, INDEX: 16, GIN: 8, SPGIST: 8}[self.kind]
        states = self.take("item states", count) if self.flags & STATES else b"\1" * count
        # Number from 1 and flags of each line pointer that has a tuple.
        self.items = [(number, {1: 1, 4: 3}[state]) for number, state in enumerate(states, 1) if state in (1, 4)]
        for index, state in enumerate(states):
            if state in (2, 3, 5):
                pointer = {2: lambda: self.next("redirect") + index & 0x7FFF | 2 << 15, 3: lambda: 3 << 15,
                           5: lambda: self.next("odd item")}[state]()
                struct.pack_into("<I", self.page, 24 + 4 * index, pointer)
        made = {HEAP: self.heap, INDEX: self.index, GIN: self.gin, SPGIST: self.spgist}[self.kind](special)
        return lower, self.place(made, special), special

    def tuple_states(self):
        count = len(self.items)
        if self.is_alike:
            return (b"\2" if self.kind == INDEX else b"\0")[:count] + bytes(max(count - 1, 0))
        return self.take("tuple states", count) if self.flags & TUPLE_STATES else bytes(count)

    def place(self, made, special):
        """Puts the tuples below one another; where the lowest starts."""
        order = list(range(len(made)))
        if self.flags & RANKS:
            expected = 0
            for index in range(len(made)):
                rank = expected + unzigzag(self.next("rank"))
                order[rank], expected = index, rank + 1
        elif self.flags & FIRST_IS_LAST:
            order = order[1:] + order[:1]
        places, at = {}, special
        for index in order:
            at -= padded(len(made[index]), 8)
            places[index] = at
        for index, (number, flags) in enumerate(self.items):
            length, start = len(made[index]), places[index]
            struct.pack_into("<I", self.page, 20 + 4 * number, start | flags << 15 | length << 17)
            padding = self.take("padding", -length % 8) if self.flags & PADDING else b""
            self.page[start:start + length + len(padding)] = made[index] + padding
        return at

    def fill(self, tuples):
        """Appends columns to tuples, column by column; each comes with how many it has and its bitmap, or None."""
        for number, ((_, alignment, length), values) in enumerate(self.columns):
            for data, count, bitmap in tuples:
                if number >= count or bitmap is not None and not bitmap[number // 8] >> number % 8 & 1:
                    continue
                value = values.next()
                form, value = value if length == -1 else (None, value)
                if form not in (SHORT, EXTERNAL):
                    data += bytes(-len(data) % alignment)
                data += header_of(form, len(value)) + value

    def heap(self, _):
        states = self.tuple_states()
        made, plain = [bytearray() for _ in states], []
        shared = [self.next(field) for field in HEAP_FIELDS] if self.is_alike else None
        fields = {name: [] for name in HEAP_FIELDS}
        for data, (number, _), state in zip(made, self.items, states):
            if state == 1:
                continue
            xmin, xmax, command_id, block, link, infomask2, infomask = shared or [self.next(name) for name in fields]
            count, bitmap = infomask2 & 0x7FF, None
            if infomask & 1:
                bitmap = self.take("nulls", -(-count // 8))
            data_at = padded(23 + len(bitmap or b""), 8)
            block = block + self.block & 0xFFFFFFFF
            data += struct.pack("<III", xmin, xmax, command_id) + row(block, link + number)
            data += struct.pack("<HHB", infomask2, infomask, data_at) + (bitmap or b"")
            data += bytes(data_at - len(data))
            plain.append((data, count, bitmap))
        self.fill(plain)
        for data, state in zip(made, states):
            if state:
                data += self.take("raw", self.next("raw length" if state == 1 else "rest length"))
        return made

    def index_tuples(self, raw_state, has_bitmaps, pointer_of):
        """Tuples of indexes; `pointer_of` gives the first six bytes of one, and appends what follows its columns."""
        states, made, infos, plain = self.tuple_states(), [], [], []
        for state in states:
            info = self.next("info") if state != raw_state else 0
            bitmap = self.take("nulls", 4) if has_bitmaps and info & 1 << 15 else None
            made.append(bytearray(8) + (bitmap + bytes(4) if bitmap else b"") if state != raw_state else bytearray())
            infos.append(info)
            if state != raw_state:
                plain.append((made[-1], len(self.columns), bitmap))
        self.fill(plain)
        for data, state, info in zip(made, states, infos):
            if state == raw_state:
                data += self.take("raw", self.next("raw length"))
                continue
            data += bytes(-len(data) % 8)
            pointer = pointer_of(data, state)
            data += bytes(-len(data) % 8)
            data[:8] = pointer + struct.pack("<H", info | len(data))
        return made

    def index(self, special):
        links = [self.next(name) + self.block & 0xFFFFFFFF for name in ("previous", "next")]
        tree = [self.next(name) for name in ("tree level", "tree flags", "tree cycle")]
        struct.pack_into("<IIIHH", self.page, special, *links, *tree)
        return self.index_tuples(2, True, self.index_pointer)

    def index_pointer(self, data, state):
        first = self.next_row(self.next("row block"), self.next("row number"))
        if state == 0:
            return first
        rows_at, count = len(data), self.next("row count")
        data += first
        for _ in range(count - 1):
            data += self.next_row(self.frame.last_row[0] + self.next("list block"), self.next("list number"))
        return row(rows_at, count | 1 << 13)

    def next_row(self, block, number):
        last_block, last_number = self.frame.last_row
        block &= 0xFFFFFFFF
        number = number + (last_number if block == last_block else 0) & 0xFFFF
        self.frame.last_row = block, number
        return row(block, number)

    def spgist(self, special):
        tree = [self.next(name) for name in ("tree flags", "tree level", "tree cycle")]
        struct.pack_into("<HHHH", self.page, special, *tree, 0xFF82)
        states = self.tuple_states()
        made = [bytearray(16 if state in (0, 1) else 0) for state in states]
        self.fill([(data, len(self.columns), None) for data, state in zip(made, states) if state == 0])
        for data, state, (number, _) in zip(made, states, self.items):
            if state == 2:
                data += bytes([67, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0])
            elif state == 3:
                data += self.take("raw", self.next("raw length"))
            else:
                data += bytes(-len(data) % 8)
                step = self.next("info")
                chain = number - step & 0xFFFF if step else 0
                to = self.next_row(self.next("row block"), self.next("row number"))
                struct.pack_into("<IH6s", data, 0, len(data) * 4, chain, to)
        return made

    def gin(self, special):
        struct.pack_into("<IHH", self.page, special, self.next("next") + self.block & 0xFFFFFFFF, 0, 2)
        return self.index_tuples(3, False, self.gin_pointer)

    def gin_pointer(self, data, state):
        if state == 2:
            return row(self.next("previous"), 65535)
        list_at, count = len(data), self.next("row count")
        data += self.gin_list(state, count)
        return row(1 << 31 | list_at, count)

    def gin_list(self, state, count):
        block, number, differences = self.next("row block"), self.next("row number"), bytearray()
        first = row(block, number)
        if state == 1:
            differences = self.take("raw", self.next("raw length"))
        for _ in range(count - 1 if state == 0 else 0):
            before = block << 11 | number
            step, number_or_step = self.next("list block"), self.next("list number")
            number = number_or_step + (number if step == 0 else 0) & 0xFFFF
            block = block + step & 0xFFFFFFFF
            left = (block << 11 | number) - before
            while left >= 128:
                differences.append(left & 127 | 128)
                left >>= 7
            differences.append(left)
        return first + struct.pack("<H", len(differences)) + differences


def header_of(form, length):
    """What stands before a value of variable length; nothing before others."""
    if form is None:
        return b""
    if form == SHORT:
        return bytes([(length + 1) << 1 | 1])
    if form == EXTERNAL:
        return b"\x01\x12"
    return struct.pack("<I", length + 4 << 2 | (2 if form == 2 else 0))


def decode(stored):
    kind, body = stored[0], stored[9:]
    if kind == 2:
        return Frame(body).content()
    if kind != 1:
        raise Damage("an unknown kind of frame")
    reader = Reader(body)
    content = text_stream(reader)
    if reader.rest():
        raise Damage("bytes are left over")
    return content


def main(directory):
    frames = sorted(pathlib.Path(directory).glob("*.frame"))
    others = [path.name for path in frames if decode(path.read_bytes()) != path.with_suffix(".raw").read_bytes()]
    print(f"{len(frames) - len(others)} of {len(frames)} frames come back; not: {', '.join(others) or 'none'}")
    return 1 if others or not frames else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
