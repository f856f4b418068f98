"""Columns of the page codec, as FORMAT.md has them: the values of a frame by layout and column."""
import struct
from streams import Damage, Stream, byte_stream, float_stream, number_stream

OPAQUE, INTEGER, FLOAT, UUID, VARLENA, NUMERIC, FLOATS, JSONB = range(8)
IN_INDEXES = 3, 5, 6
SHORT, LONG, COMPRESSED, EXTERNAL = range(4)
SHAPES, COUNTS, BOOLEANS, STRINGS, NUMBERS = range(5)
OBJECT, ARRAY, SCALAR, SAME = 0, 1, 2, 8
CONTAINER_WORDS = {OBJECT: 0x20000000, ARRAY: 0x40000000, SCALAR: 0x50000000}


class Columns:
    """Reads the columns of layouts; `in_text` gives what stands next in the frame's text."""

    def __init__(self, reader, in_text):
        self.reader, self.in_text = reader, in_text

    def of_layout(self, kind, attributes):
        """For each column the stream of its values: bytes, or of variable length (form, payload)."""
        streams, numbers = [], []
        for attribute in attributes:
            which = self.reader.u8()
            numbers.append(None)
            streams.append(Stream(self.column(which, kind, attribute, numbers) if which else []))
        return streams

    def column(self, which, kind, attribute, numbers):
        reader, (value_type, _, length) = self.reader, attribute
        if length == -1:
            return self.variable(which, kind in IN_INDEXES and value_type == VARLENA)
        if which == 5 and (value_type == UUID or value_type in (INTEGER, FLOAT) and length == 8):
            return self.keys(value_type, numbers)
        if which != 1:
            raise Damage("a column has streams that its type does not have")
        if value_type == OPAQUE:
            values = self.in_text()
            return [values[at:at + length] for at in range(0, len(values), length)]
        if value_type == INTEGER and length == 1:
            return [bytes([value]) for value in byte_stream(reader)]
        if value_type == INTEGER:
            distance = reader.u8()
            reference = numbers[-1 - distance] if distance else None
            numbers[-1] = number_stream(reader, 64 if length == 8 else 32, reference)
            return [number.to_bytes(length, "little") for number in numbers[-1]]
        if value_type == FLOAT:
            return float_stream(reader, 8 * length)
        if value_type == UUID:
            return uuids(number_stream(reader, 64), number_stream(reader, 64))
        if value_type == FLOATS:
            parts = []
            for number in range(length // 8):
                parts.append(float_stream(reader, 64, parts[number - 2] if number >= 2 else None))
            return [b"".join(value) for value in zip(*parts)]
        raise Damage("an unknown type")

    def variable(self, which, are_keys):
        ways = {1: lambda: self.plain(are_keys), 5: self.dictionary, 9: self.numerics, 17: self.arrays, 33: self.documents,
                65: self.geometries, 129: self.packed}
        way = ways.get(which & ~2)
        if way is None:
            raise Damage("a column has streams that its type does not have")
        values = way()
        if which & 2:
            fields = zip(*[number_stream(self.reader, 32) for _ in range(4)])
            pointers = Stream([struct.pack("<4I", *pointer) for pointer in fields])
            values = [(form, pointers.next() if form == EXTERNAL else value) for form, value in values]
        return values

    def plain(self, are_keys=False):
        heads, payloads = number_stream(self.reader, 32), self.in_text()
        shared = Stream(byte_stream(self.reader) if are_keys else [])
        values, at, before = [], 0, b""
        for head in heads:
            form, length, value = head & 3, head >> 2, b""
            if form != EXTERNAL:
                start = before[:shared.next()] if are_keys else b""
                value = start + payloads[at:at + length - len(start)]
                at += length - len(start)
                before = value
            values.append((form, value))
        if at != len(payloads):
            raise Damage("payloads of another length than their heads say")
        return values

    def dictionary(self):
        return self.chosen(self.plain())

    def chosen(self, entries):
        indices = byte_stream(self.reader) if len(entries) <= 255 else number_stream(self.reader, 32)
        return [entries[index] for index in indices]

    def keys(self, value_type, numbers):
        entries = number_stream(self.reader, 64)
        if value_type == UUID:
            return self.chosen(uuids(entries, number_stream(self.reader, 64)))
        numbers[-1] = self.chosen(entries)
        return [number.to_bytes(8, "little") for number in numbers[-1]]

    def numerics(self):
        places, width = byte_stream(self.reader), 8 * self.reader.u8()
        numbers, as_they_are = Stream(number_stream(self.reader, width)), Stream(self.plain())
        return [as_they_are.next() if scale == 255 else (SHORT, numeric(numbers.next(), scale)) for scale in places]

    def arrays(self):
        heads, rest, at, values = number_stream(self.reader, 32), self.in_text(), 0, []
        floats = [Stream(float_stream(self.reader, 64)) for _ in range(2)]
        for head in heads:
            form, length = head & 3, head >> 2
            has_floats = form <= LONG and length >= 24
            start = length % 8 if has_floats else length
            value = rest[at:at + start]
            at += start
            if has_floats:
                value += b"".join(floats[number & 1].next() for number in range(length // 8))
            values.append((form, value))
        return values

    def geometries(self):
        reader = self.reader
        heads, marks = number_stream(reader, 32), byte_stream(reader)
        geometries = Geometries(reader, self.in_text)
        return [(head & 3, geometries.next(mark, 0 if head & 3 == EXTERNAL else head >> 2)) for head, mark in zip(heads, marks)]

    def packed(self):
        heads, way = number_stream(self.reader, 32), self.reader.u8()
        sizes = Stream(number_stream(self.reader, 32))
        groups = Groups(*[byte_stream(self.reader) for _ in range(4)], self.in_text())
        lengths = [0 if head & 3 == EXTERNAL else head >> 2 for head in heads]
        if way == 0:
            pieces = [(length, head & 3 == COMPRESSED) for head, length in zip(heads, lengths)]
        elif way == 1:
            pieces, piece = [], 0
            for number, length in enumerate(lengths):
                piece += length
                if length < max(lengths) or number == len(lengths) - 1:
                    pieces.append((piece, True))
                    piece = 0
        else:
            raise Damage("an unknown kind of pieces")
        content = bytearray()
        for length, is_piece in pieces:
            if is_piece and length >= 4:
                content += sizes.next().to_bytes(4, "little")
                groups.make(length - 4, content)
            else:
                content += bytes(groups.literals.next() for _ in range(length))
        if not groups.are_spent():
            raise Damage("groups hold more than their pieces")
        ends = [sum(lengths[:number + 1]) for number in range(len(lengths))]
        return [(head & 3, bytes(content[end - length:end])) for head, length, end in zip(heads, lengths, ends)]

    def documents(self):
        are_whole, as_they_are = byte_stream(self.reader), Stream(self.plain())
        documents = Documents(self)
        values = []
        for is_whole in are_whole:
            if is_whole:
                values.append(as_they_are.next())
            else:
                document = documents.next()
                values.append((SHORT if len(document) <= 126 else LONG, document))
        return values


class Groups:
    """What pglz makes of a value: a control byte, and for each of its bits a literal or a match."""

    def __init__(self, controls, firsts, seconds, thirds, literals):
        self.controls, self.firsts, self.seconds = Stream(controls), Stream(firsts), Stream(seconds)
        self.thirds, self.literals = Stream(thirds), Stream(literals)

    def are_spent(self):
        streams = self.controls, self.firsts, self.seconds, self.thirds, self.literals
        return not any(len(stream.rest()) for stream in streams)

    def make(self, length, content):
        end = len(content) + length
        while len(content) < end:
            control = self.controls.next()
            content.append(control)
            for item in range(8):
                if len(content) == end:
                    break
                if control >> item & 1 == 0:
                    content.append(self.literals.next())
                    continue
                first = self.firsts.next()
                content.append(first)
                if len(content) < end:
                    content.append(self.seconds.next())
                if len(content) < end and first & 15 == 15:
                    content.append(self.thirds.next())


def uuids(firsts, seconds):
    return [first.to_bytes(8, "big") + second.to_bytes(8, "little") for first, second in zip(firsts, seconds)]


def numeric(number, scale):
    """The payload of a numeric with the short header."""
    whole, fill = number >> 1, -scale % 4
    left, weight, digits = whole * 10 ** fill, -(scale + fill) // 4 - 1, []
    while left:
        digits.insert(0, left % 10000)
        left //= 10000
        weight += 1
    while digits and digits[-1] == 0:
        digits.pop()
    weight = weight if digits else 0
    header = 0x8000 | (number & 1) << 13 | scale << 7 | (0x40 if weight < 0 else 0) | weight & 0x3F
    return struct.pack(f"<{1 + len(digits)}H", header, *digits)


class Documents:
    """jsonb by shapes, keys and leaves."""

    def __init__(self, columns):
        reader, self.columns = columns.reader, columns
        self.keys = columns.in_text().split(b"\0")[:-1]
        self.read_shapes(reader)
        self.flags = byte_stream(reader)
        self.leaves = {}
        for leaf_class in range(5):
            for column, flags in enumerate(self.flags):
                if flags >> leaf_class & 1:
                    self.leaves[leaf_class, column] = Stream(self.read_leaves(reader, leaf_class))
        self.shapes_seen = 0

    def read_shapes(self, reader):
        kinds, counts = byte_stream(reader), Stream(number_stream(reader, 32))
        types, codes = Stream(byte_stream(reader)), Stream(number_stream(reader, 32))
        self.shapes, keys_seen = [], 0
        for kind in kinds:
            of_values, keys = b"", []
            if kind < SAME:
                of_values = types.take(counts.next())
            for code in codes.take(len(of_values) if kind == OBJECT else 0):
                keys.append(code - 1 if code else keys_seen)
                keys_seen += code == 0
            self.shapes.append((kind, of_values, keys))

    def read_leaves(self, reader, leaf_class):
        if leaf_class in (SHAPES, COUNTS):
            return number_stream(reader, 32)
        if leaf_class == BOOLEANS:
            return byte_stream(reader)
        way = reader.u8()
        if way == 0:
            return self.columns.in_text().split(b"\0")[:-1]
        if way == 1:
            length, strings = reader.varint(), self.columns.in_text()
            return [strings[at:at + length] for at in range(0, len(strings), length)]
        ways = {2: self.columns.plain, 3: self.columns.dictionary, 4: self.columns.numerics}
        return [value for _, value in ways[way]()]

    def leaf(self, leaf_class, column):
        own = column if column < len(self.flags) and self.flags[column] >> leaf_class & 1 else 0
        return self.leaves[leaf_class, own].next()

    def next(self):
        document = bytearray()
        self.container(document, 1)
        return bytes(document)

    def container(self, document, column):
        """Appends a container; `column` is that of the key it is under."""
        number = self.leaf(SHAPES, column)
        self.shapes_seen += number == 0
        kind, types, keys = self.shapes[number - 1 if number else self.shapes_seen - 1]
        if kind >= SAME:
            types = bytes([kind - SAME]) * self.leaf(COUNTS, column)
        document += bytes(-len(document) % 4)
        document += struct.pack("<I", CONTAINER_WORDS.get(kind, CONTAINER_WORDS[ARRAY]) | len(types))
        entries_at = len(document)
        document += bytes(4 * (len(keys) + len(types)))
        base, entry_number = len(document), 0

        def entry(entry_type, start):
            nonlocal entry_number
            end = len(document) - base | 1 << 31
            measure = len(document) - start if entry_number % 32 else end
            struct.pack_into("<I", document, entries_at + 4 * entry_number, entry_type << 28 | measure)
            entry_number += 1

        for key in keys:
            start = len(document)
            document += self.keys[key]
            entry(0, start)
        for place, value_type in enumerate(types):
            start = len(document)
            entry(self.value(document, value_type, 2 + keys[place] if keys else column), start)

    def value(self, document, value_type, column):
        """Appends a value; gives the type of its entry."""
        if value_type == 0:
            document += self.leaf(STRINGS, column)
        elif value_type == 1:
            number = self.leaf(NUMBERS, column)
            document += bytes(-len(document) % 4) + struct.pack("<I", len(number) + 4 << 2) + number
        elif value_type == 2:
            return 2 + self.leaf(BOOLEANS, column)
        elif value_type == 5:
            self.container(document, column)
        return value_type


class Geometries:
    """PostGIS's values by shapes and coordinates."""

    def __init__(self, reader, in_text):
        self.headers, self.boxes = Stream(number_stream(reader, 32)), Stream(number_stream(reader, 32))
        self.kinds, self.counts = Stream(byte_stream(reader)), Stream(number_stream(reader, 32))
        self.rest, self.at = in_text(), 0
        self.axes = [Stream(float_stream(reader, 64)) for _ in range(reader.u8())]

    def next(self, mark, length):
        if mark == 0:
            self.at += length
            return self.rest[self.at - length:self.at]
        header = struct.pack("<I", self.headers.next())
        flags = header[3]
        self.axis_count = 2 + (flags & 1) + (flags >> 1 & 1)
        sides = 6 if flags & 8 else 2 * self.axis_count
        sides = sides if flags & 4 else 0
        self.length, self.shapes = length - 4 - 4 * sides, bytearray()
        self.seen = [[] for _ in range(self.axis_count)]
        self.shape(True)
        if len(self.shapes) != self.length:
            raise Damage("shapes of another length than their value")
        if mark == 2:
            box = struct.pack(f"<{sides}I", *self.boxes.take(sides))
        else:
            box = b"".join(outside(axis) for axis in self.seen) if sides else b""
        return header + box + bytes(self.shapes)

    def word(self, word):
        self.shapes += struct.pack("<I", word)
        return word

    def fitting(self, before):
        """How many points fit into what is left, behind so many bytes."""
        return (self.length - len(self.shapes) - before) // (8 * self.axis_count)

    def shape(self, is_last):
        kind = self.word(self.kinds.next())
        if kind in (1, 2, 8, 14):
            self.points(self.word(self.fitting(4) if is_last else self.counts.next()))
        elif kind == 3:
            count = self.word(self.counts.next())
            rings, fitting = [], self.fitting(4 * (count + count % 2))
            for ring in range(count):
                is_known = is_last and ring == count - 1
                rings.append(self.word(fitting - sum(rings) if is_known else self.counts.next()))
            if count % 2:
                self.word(0)
            for ring in rings:
                start = len(self.shapes)
                self.points(ring - (ring > 1))
                if ring > 1:
                    self.shapes += self.shapes[start:start + 8 * self.axis_count]
        else:
            count = self.word(self.counts.next())
            for number in range(count):
                self.shape(is_last and number == count - 1)

    def points(self, count):
        for _ in range(count):
            for axis in range(self.axis_count):
                value = self.axes[axis].next()
                self.seen[axis].append(struct.unpack("<d", value)[0])
                self.shapes += value


def outside(values):
    """The floats of four bytes next to the least and the greatest value that are not inside."""
    sides = []
    for extreme, is_inside, step in (min, float.__gt__, -1), (max, float.__lt__, 1):
        exact = extreme((value for value in values if value == value), default=-step * float("inf"))
        near = struct.unpack("<f", struct.pack("<f", exact))[0]
        pattern = struct.unpack("<i", struct.pack("<f", near))[0]
        if is_inside(near, exact) and near == 0:
            pattern = 1 if step > 0 else 1 - (1 << 31)
        elif is_inside(near, exact):
            pattern += step if near > 0 else -step
        sides.append(struct.pack("<i", pattern))
    return b"".join(sides)
