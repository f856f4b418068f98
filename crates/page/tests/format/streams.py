"""Entropy coded streams of the page codec, as FORMAT.md has them."""
import ctypes, struct

LIBZSTD = ctypes.CDLL("libzstd.so.1")
LIBZSTD.ZSTD_decompress.restype = ctypes.c_size_t
LIBZSTD.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
HUFFMAN_BITS = 11


class Damage(Exception):
    """These are not the bytes of a frame."""


class Stream:
    """Values that are used up in their order."""

    def __init__(self, values):
        self.values, self.used = values, 0

    def next(self):
        return self.take(1)[0]

    def take(self, count):
        taken = self.values[self.used:self.used + count]
        if len(taken) != count:
            raise Damage("a stream ends early")
        self.used += count
        return taken

    def rest(self):
        return self.take(len(self.values) - self.used)


class Reader(Stream):
    """The bytes of a frame."""

    u8 = Stream.next

    def varint(self):
        value = shift = 0
        while shift < 70:
            byte = self.u8()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if shift > 70 or value >> 64:
            raise Damage("a varint above 64 bits")
        return value

    def zigzag(self):
        return unzigzag(self.varint())


def unzigzag(value):
    return value >> 1 ^ -(value & 1)


def unzstd(packed, length):
    room = ctypes.create_string_buffer(length + 1)
    framed = ZSTD_MAGIC + packed
    if LIBZSTD.ZSTD_decompress(room, length + 1, framed, len(framed)) != length:
        raise Damage("a zstd frame of another length")
    return room.raw[:length]


def unlz4(block, length):
    def lengthened(count):
        more = 255 if count == 15 else 0
        while more == 255:
            more = block.u8()
            count += more
        return count

    text = bytearray()
    while block.used < len(block.values):
        token = block.u8()
        text += block.take(lengthened(token >> 4))
        if block.used == len(block.values):
            break
        distance = block.u8() | block.u8() << 8
        if not 1 <= distance <= len(text):
            raise Damage("an LZ4 match before its block")
        for _ in range(lengthened(token & 15) + 4):
            text.append(text[-distance])
    if len(text) != length:
        raise Damage("an LZ4 block of another length")
    return bytes(text)


def bits_of(data):
    """All bits as one number, the lowest of the first byte first."""
    return int.from_bytes(data, "little")


def bit_run(reader, widths):
    """Numbers of these bits in a row."""
    left = bits_of(reader.take((sum(widths) + 7) // 8))
    numbers = []
    # In pieces: shifting one long number for each would take its length each time.
    for start in range(0, len(widths), 64):
        piece = widths[start:start + 64]
        low = left & (1 << sum(piece)) - 1
        left >>= sum(piece)
        for width in piece:
            numbers.append(low & (1 << width) - 1)
            low >>= width
    return numbers


def code_lengths(reader):
    """Symbol to length of its code."""
    which = reader.u8()
    if which == 0:
        symbols = reader.take(reader.u8() + 1)
    elif which == 1:
        first, last = reader.u8(), reader.u8()
        symbols = range(first, last + 1)
    elif which == 2:
        there = bits_of(reader.take(32))
        symbols = [symbol for symbol in range(256) if there >> symbol & 1]
    else:
        raise Damage("an unknown list of symbols")
    left, used = bits_of(reader.values[reader.used:reader.used + 256]), 0

    def bits(count):
        nonlocal used
        taken = left >> used & (1 << count) - 1
        used += count
        return taken

    lengths, length = {}, 5
    for symbol in symbols:
        if bits(1):
            if bits(1) == 0:
                length += 1
            elif bits(1) == 0:
                length -= 1
            else:
                length = bits(4)
        if not 0 <= length <= HUFFMAN_BITS:
            raise Damage("a code that is too long")
        if length:
            lengths[symbol] = length
    reader.take((used + 7) // 8)
    if sum(1 << HUFFMAN_BITS - length for length in lengths.values()) != 1 << HUFFMAN_BITS:
        raise Damage("codes that are not complete")
    return lengths


def huffman(reader, count):
    lengths = code_lengths(reader)
    by_bits, code, before = {}, 0, 0
    for symbol, length in sorted(lengths.items(), key=lambda pair: (pair[1], pair[0])):
        code <<= length - before
        before = length
        # The highest bit of a code comes first.
        turned = int(format(code, f"0{length}b")[::-1], 2)
        for rest in range(turned, 1 << HUFFMAN_BITS, 1 << length):
            by_bits[rest] = symbol, length
        code += 1
    if count < 256:
        counts = [count]
    else:
        quarter = (count + 3) // 4
        counts = [quarter, quarter, quarter, count - 3 * quarter]
    sizes = [reader.varint() for _ in counts]
    return b"".join(huffman_bits(reader.take(size), part, by_bits) for size, part in zip(sizes, counts))


def huffman_bits(data, count, by_bits):
    values, window, held, at = bytearray(), 0, 0, 0
    for _ in range(count):
        if held < HUFFMAN_BITS:
            window |= bits_of(data[at:at + 8]) << held
            held, at = held + 64, at + 8
        symbol, length = by_bits[window & (1 << HUFFMAN_BITS) - 1]
        values.append(symbol)
        window >>= length
        held -= length
    if (8 * at - held + 7) // 8 != len(data):
        raise Damage("codes of another size")
    return bytes(values)


def byte_stream(reader):
    return byte_body(reader, reader.varint())


def byte_body(reader, count, is_nested=False):
    if count == 0:
        return b""
    form = reader.u8()
    if form == 0:
        return reader.take(count)
    if form == 1:
        return bytes([reader.u8()]) * count
    if form == 2:
        return huffman(reader, count)
    if is_nested:
        raise Damage("a form that bodies within bodies do not have")
    if form in (3, 4):
        return exceptions_or_runs(reader, count, form == 4)
    if form in (5, 6, 7):
        return packed(reader, count, {5: 2, 6: 4, 7: 8}[form])
    if form == 8:
        return unzstd(reader.take(reader.varint()), count)
    raise Damage("an unknown form of bytes")


def exceptions_or_runs(reader, count, are_runs):
    most = b"" if are_runs else reader.take(1)
    value_count, full = reader.varint(), reader.varint()
    lengths = byte_body(reader, value_count + full, True)
    parts = iter(byte_body(reader, value_count, True))
    values, length = bytearray(), 0
    for byte in lengths:
        length += byte
        if byte < 255:
            value = bytes([next(parts)])
            values += value * (length + 1) if are_runs else most * length + value
            length = 0
    if len(values) > count or are_runs and len(values) < count:
        raise Damage("runs or gaps of another length than their stream")
    return bytes(values) + most * (count - len(values))


def packed(reader, count, per_byte):
    symbols, width = reader.take(reader.u8()), 8 // per_byte
    indices = [byte >> place * width & (1 << width) - 1
               for byte in byte_body(reader, -(-count // per_byte), True) for place in range(per_byte)]
    return bytes(symbols[index] for index in indices[:count])


def number_stream(reader, width, reference=None):
    return number_body(reader, reader.varint(), width, reference)


def number_body(reader, count, width, reference=None, is_nested=False):
    if count == 0:
        return []
    mask, mode = (1 << width) - 1, reader.u8()
    if mode == 0:
        return [reader.varint()] * count
    if mode == 1:
        first, step = reader.varint(), reader.zigzag()
        return [first + step * place & mask for place in range(count)]
    if mode >= 0x80:
        return general(reader, mode, count, width, reference)
    if is_nested:
        raise Damage("a mode that bodies within bodies do not have")
    if mode == 2:
        run_count = reader.varint()
        values = number_body(reader, run_count, width, is_nested=True)
        lengths = number_body(reader, run_count, width, is_nested=True)
        if sum(lengths) + run_count != count:
            raise Damage("runs of another length than their stream")
        return [value for value, length in zip(values, lengths) for _ in range(length + 1)]
    if mode == 3:
        entries = number_body(reader, reader.u8() + 1, width, is_nested=True)
        return [entries[index] for index in byte_body(reader, count)]
    raise Damage("an unknown mode of numbers")


def general(reader, mode, count, width, reference):
    mask, source = (1 << width) - 1, mode & 3
    first = {0: lambda: 0, 1: reader.varint, 2: lambda: 0, 3: reader.zigzag}[source]()
    least = None if mode & 4 else reader.zigzag()
    divisor = reader.varint() if mode & 8 else 1
    numbers = shaped(reader, mode >> 4 & 7, count - (source & 1), width)
    if least is None:
        differences = [unzigzag(number) * divisor for number in numbers]
    else:
        differences = [number * divisor + least for number in numbers]
    if source & 1:
        sums = [first]
        for difference in differences:
            sums.append(sums[-1] + difference)
        differences = sums
    if source < 2:
        return [difference & mask for difference in differences]
    if reference is None or len(reference) != count:
        raise Damage("a reference of another count")
    return [difference + near & mask for difference, near in zip(differences, reference)]


def shaped(reader, shape, count, width):
    if shape == 0:
        low = reader.u8()
        high = byte_body(reader, count)
        return [top << low | rest for top, rest in zip(high, bit_run(reader, [low] * count))]
    if shape in (1, 2, 3):
        return tokens(reader, count, shape - 1)
    if shape == 4:
        planes = [byte_body(reader, count) for _ in range(reader.u8())]
        return [bits_of(bytes(number)) for number in zip(*planes)]
    raise Damage("an unknown shape of numbers")


def tokens(reader, count, fine):
    bases, opens = [], []
    for token in byte_body(reader, count):
        large = max(token - 16, 0)
        open_bits = 4 + (large >> fine) - fine if token >= 16 else 0
        bases.append((1 << fine | large & (1 << fine) - 1) << open_bits if token >= 16 else token)
        opens.append(open_bits)
    return [base | rest for base, rest in zip(bases, bit_run(reader, opens))]


def float_stream(reader, width, reference=None):
    """The bytes of each float."""
    mode, size, form = reader.u8(), width // 8, "<d" if width == 64 else "<f"
    if mode == 20:
        reference = [int.from_bytes(pattern, "little") for pattern in reference]
    numbers = number_stream(reader, width, reference if mode == 20 else None)
    if mode in (0, 20):
        return [number.to_bytes(size, "little") for number in numbers]
    signed = [number - (number >> width - 1 << width) for number in numbers]
    values = [struct.pack(form, float(number) / 10 ** (mode - 1)) for number in signed]
    for place, pattern in zip(number_stream(reader, 32), number_stream(reader, width)):
        values[place] = pattern.to_bytes(size, "little")
    return values


def text_stream(reader, may_alternate=True):
    length = reader.varint()
    form = reader.u8() if length else 0
    if form == 0:
        return reader.take(length)
    if form == 1:
        return unzstd(reader.take(reader.varint()), length)
    if form == 8:
        return unlz4(Reader(reader.take(reader.varint())), length)
    if form > 7 or not may_alternate:
        raise Damage("an unknown form of text")
    units = (1, 16) if form == 7 else (1024, 1024)
    runs = [units[number & 1] * reader.varint() for number in range(reader.varint())]
    if form == 2:
        apart = Reader(byte_stream(reader))
    elif form == 7:
        firsts, seconds = float_stream(reader, 64), float_stream(reader, 64)
        apart = Reader(b"".join(first + second for first, second in zip(firsts, seconds)))
    else:
        apart = Reader(b"".join(number.to_bytes(4, "little") for number in number_stream(reader, 32)))
    text = Reader(text_stream(reader, False))
    pieces = [text.take(max(form - 3, 0) if form < 7 else 0)]
    pieces += [(apart if number & 1 else text).take(run) for number, run in enumerate(runs)]
    return b"".join(pieces) + text.rest()
