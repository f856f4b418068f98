//! Round trips over the shapes that pages have.

use proptest::prelude::*;

use super::*;

fn numbers_come_back(values: &[u64], reference: Option<&[u64]>) -> Vec<u8> {
    let mut out = Vec::new();
    NumberCoder::new(Effort::Default).encode_u64(values, reference, &mut out);
    let mut back = Vec::new();
    let mut reader = Reader::new(&out);
    NumberDecoder::new().decode_u64(&mut reader, values.len(), reference, &mut back).expect("what was encoded decodes");
    assert!(reader.is_empty());
    assert_eq!(back, values);
    out
}

proptest! {
    #[test]
    fn any_numbers_come_back(values in prop::collection::vec(any::<u64>(), 0..300)) {
        numbers_come_back(&values, None);
        let reference: Vec<u64> = values.iter().map(|value| value ^ 5).collect();
        numbers_come_back(&values, Some(&reference));
    }
}

fn bytes_come_back(effort: Effort, values: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ByteCoder::new(effort).encode(values, &mut out);
    let mut back = vec![7];
    let mut reader = Reader::new(&out);
    ByteDecoder::new().decode(&mut reader, values.len(), &mut back).expect("what was encoded decodes");
    assert!(reader.is_empty());
    assert_eq!(&back[1..], values);
    out
}

/// Numbers that look random and are the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Bytes, what they are like, and the form that suits them.
fn byte_shapes() -> Vec<(&'static str, u8, Vec<u8>)> {
    let mut noise = Noise(1);
    let mut make = |name, form, count: usize, value: &mut dyn FnMut(&mut Noise, usize) -> u64| {
        (name, form, (0..count).map(|at| value(&mut noise, at) as u8).collect::<Vec<u8>>())
    };
    vec![
        make("constant", bytes::CONSTANT, 5000, &mut |_, _| 9),
        make("noise", bytes::RAW, 5000, &mut |noise, _| noise.next()),
        make("few", bytes::RAW, 9, &mut |noise, _| noise.next()),
        make("skewed", bytes::HUFFMAN, 5000, &mut |noise, _| {
            60 + u64::from(noise.next().trailing_zeros()) + 2 * noise.below(12)
        }),
        make("skewed and short", bytes::HUFFMAN, 255, &mut |noise, _| 60 + noise.below(5) * noise.below(5)),
        make("wide alphabet", bytes::HUFFMAN, 20_000, &mut |noise, _| noise.below(200) * noise.below(256) / 200),
        make("rare exceptions", bytes::SPARSE, 20_000, &mut |noise, _| {
            if noise.below(200) == 0 { 100 + noise.below(40) } else { 3 }
        }),
        make("common exceptions", bytes::SPARSE, 20_000, &mut |noise, _| {
            if noise.below(8) == 0 { 100 + noise.below(40) } else { 3 }
        }),
        make("runs", bytes::RUNS, 20_000, &mut |_, at| at as u64 / 700 * 31),
        make("sixteen symbols", bytes::PACKED_2, 20_000, &mut |noise, _| noise.below(16) * 10),
        make("four symbols", bytes::PACKED_4, 20_001, &mut |noise, _| noise.below(4) * 9),
        make("two symbols", bytes::PACKED_8, 20_003, &mut |noise, _| noise.below(2)),
        make("periods", bytes::ZSTD, 20_000, &mut |_, at| Noise(at as u64 % 700).next()),
    ]
}

#[test]
fn every_shape_of_bytes_takes_its_form() {
    for (name, form, values) in byte_shapes() {
        for effort in [Effort::Fast, Effort::Default, Effort::Thorough, Effort::Small] {
            let out = bytes_come_back(effort, &values);
            let mut reader = Reader::new(&out);
            reader.varint().expect("a count");
            if effort == Effort::Thorough {
                assert_eq!(reader.u8(), Ok(form), "{name}: {} of {}", out.len(), values.len());
            }
            assert!(out.len() <= values.len() + 4, "{name}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_come_back(values in prop::collection::vec(any::<u8>(), 0..1000), top in 1..=255_u8, stretch in 1..30_usize) {
        let values: Vec<u8> = values.iter().flat_map(|value| std::iter::repeat_n(value % top, 1 + usize::from(*value) % stretch)).collect();
        for effort in [Effort::Fast, Effort::Default, Effort::Thorough, Effort::Small] {
            bytes_come_back(effort, &values);
        }
    }
}

/// Numbers, what they are like, the mode that suits them without its shape, and the shapes it may have.
type NumberShape = (&'static str, u8, &'static [u8], Vec<u64>, Option<Vec<u64>>);

fn number_shapes() -> Vec<NumberShape> {
    use super::numbers::{CONSTANT, DICTIONARY, DIVIDED, GENERAL, PLANES, PROGRESSION, RUNS, SPLIT, TOKENS, ZIGZAG};
    const VALUE: u8 = GENERAL;
    const DELTA: u8 = GENERAL | 1;
    const REFERENCE: u8 = GENERAL | 2;
    const REFERENCE_DELTA: u8 = GENERAL | 3;
    const ANY: &[u8] = &[SPLIT, TOKENS, 2 * TOKENS, 3 * TOKENS, PLANES];
    const TOKENS_ANY: &[u8] = &[TOKENS, 2 * TOKENS, 3 * TOKENS];
    let mut noise = Noise(2);
    let mut sum = 1_000_000;
    let mut make = |count: u64, value: &mut dyn FnMut(&mut Noise, u64) -> u64| -> Vec<u64> {
        (0..count).map(|at| value(&mut noise, at)).collect()
    };
    let random = make(5000, &mut |noise, _| noise.next() >> 34);
    let near = make(5000, &mut |noise, at| random[at as usize] + 7 + noise.below(30));
    let gaps = make(5000, &mut |noise, _| {
        sum += 1 + noise.below(9) * noise.below(9);
        sum
    });
    let walk = make(5000, &mut |noise, _| {
        sum = sum.wrapping_add(noise.below(1000)).wrapping_sub(499);
        if noise.below(20) == 0 {
            sum = sum.wrapping_add(1 << noise.below(29)).wrapping_sub(1 << noise.below(29));
        }
        sum
    });
    let drift = make(5000, &mut |noise, at| random[at as usize] + at * 100_000 % (1 << 31) + noise.below(30));
    vec![
        ("constant", CONSTANT, &[0], vec![u64::from(u32::MAX); 5000], None),
        ("one", CONSTANT, &[0], vec![77], None),
        ("progression", PROGRESSION, &[0], make(5000, &mut |_, at| 4_000_000_000 - 3 * at), None),
        ("runs", RUNS, &[0], make(20_000, &mut |_, at| Noise(at / 97).next() >> 33), None),
        ("dictionary", DICTIONARY, &[0], make(20_000, &mut |noise, _| Noise(noise.below(90)).next() >> 33), None),
        ("narrow", VALUE, &[SPLIT], make(5000, &mut |noise, _| 1 + noise.below(50)), None),
        ("uniform", VALUE, &[SPLIT], make(5000, &mut |noise, _| noise.below(100_000)), None),
        ("powers", VALUE, TOKENS_ANY, make(5000, &mut |noise, _| (noise.next() >> 33) >> noise.below(30)), None),
        ("hundreds", VALUE | DIVIDED, ANY, make(5000, &mut |noise, _| 5 + 100 * noise.below(30_000)), None),
        (
            "around zero",
            VALUE | ZIGZAG,
            TOKENS_ANY,
            make(5000, &mut |noise, _| {
                let size = noise.next() >> 40 >> noise.below(24);
                u64::from(if noise.below(2) == 0 { size as u32 } else { (size as u32).wrapping_neg() })
            }),
            None,
        ),
        ("gaps", DELTA, &[SPLIT], gaps, None),
        ("walk", DELTA | ZIGZAG, ANY, walk, None),
        ("dates", REFERENCE, &[SPLIT], near, Some(random.clone())),
        ("drift", REFERENCE_DELTA, ANY, drift, Some(random)),
        (
            "planes",
            VALUE,
            &[PLANES],
            make(5000, &mut |noise, _| {
                noise.below(3) << 28 | (noise.next() & 0xff) << 16 | noise.below(2) << 8 | noise.below(3)
            }),
            None,
        ),
    ]
}

#[test]
fn every_shape_of_numbers_takes_its_mode() {
    use super::numbers::{GENERAL, SHAPE};
    for (name, mode, shapes, values, reference) in number_shapes() {
        let narrow: Vec<u32> = values.iter().map(|value| *value as u32).collect();
        let narrow_reference: Option<Vec<u32>> =
            reference.as_ref().map(|reference| reference.iter().map(|value| *value as u32).collect());
        for effort in [Effort::Fast, Effort::Default, Effort::Thorough, Effort::Small] {
            let mut out = Vec::new();
            NumberCoder::new(effort).encode_u32(&narrow, narrow_reference.as_deref(), &mut out);
            let mut back = Vec::new();
            let mut reader = Reader::new(&out);
            let reference = narrow_reference.as_deref();
            NumberDecoder::new().decode_u32(&mut reader, narrow.len(), reference, &mut back).expect(name);
            assert!(reader.is_empty() && back == narrow, "{name}");
            assert!(out.len() < narrow.len() * 4 + 8, "{name}");
            let mut reader = Reader::new(&out);
            reader.varint().expect("a count");
            let chosen = reader.u8().expect("a mode");
            let shape = if chosen & GENERAL == 0 { 0 } else { chosen & SHAPE };
            if effort == Effort::Thorough {
                assert_eq!(
                    (chosen ^ shape, shapes.contains(&shape)),
                    (mode, true),
                    "{name}: {chosen:#x} {}",
                    out.len()
                );
            }
        }
        numbers_come_back(&values, reference.as_deref());
        let wide: Vec<u64> = values.iter().map(|value| value.wrapping_mul(0x1_0000_0001).wrapping_sub(5)).collect();
        numbers_come_back(&wide, None);
    }
}

#[test]
fn few_numbers_are_stored_as_the_smaller_range_of_values_and_steps() {
    let rows = 0..100_u32;
    let rising: Vec<u32> = rows.clone().map(|row| row * 1000 + row * row % 13).collect();
    let falling: Vec<u32> = rising.iter().map(|value| 0_u32.wrapping_sub(*value)).collect();
    let scattered: Vec<u32> = rows.map(|row| row * row % 251).collect();
    for (values, byte_count) in [(rising, 100), (falling, 100), (scattered, 100)] {
        let mut out = Vec::new();
        NumberCoder::new(Effort::Default).encode_u32(&values, None, &mut out);
        assert!(out.len() < byte_count + 16, "{} {values:?}", out.len());
        let mut back = Vec::new();
        NumberDecoder::new().decode_u32(&mut Reader::new(&out), values.len(), None, &mut back).unwrap();
        assert_eq!(back, values);
    }
}

#[test]
fn bytes_that_hide_from_a_sample_come_back() {
    // Where the sample looks there are all bytes, between there are two in turns; and the other way round.
    for (seen, others) in [(0..64, 7..9), (7..9, 0..64)] {
        let byte = |at: u32| {
            let of = if at.is_multiple_of(64) { &seen } else { &others };
            (of.start + at.wrapping_mul(2_654_435_761) % (of.end - of.start)) as u8
        };
        let values: Vec<u8> = (0..4096).map(byte).collect();
        for effort in [Effort::Fast, Effort::Default] {
            assert!(bytes_come_back(effort, &values).len() <= values.len() + 4);
        }
    }
}

/// Any result but a panic, and never more values than allowed.
fn decode_damaged(bytes: &[u8], count_max: usize) {
    let (mut small, mut narrow, mut wide) = (Vec::new(), Vec::new(), Vec::new());
    let outcomes = [
        ByteDecoder::new().decode(&mut Reader::new(bytes), count_max, &mut small),
        NumberDecoder::new().decode_u32(&mut Reader::new(bytes), count_max, None, &mut narrow),
        NumberDecoder::new().decode_u64(&mut Reader::new(bytes), count_max, Some(&[5; 4000]), &mut wide),
    ];
    assert!(small.len() <= count_max && narrow.len() <= count_max && wide.len() <= count_max);
    assert!(outcomes[0].is_ok() || small.is_empty());
    assert!(outcomes[1].is_ok() || narrow.is_empty());
    assert!(outcomes[2].is_ok() || wide.is_empty());
    let mut floats = Vec::new();
    let float = FloatDecoder::new().decode_f64(&mut Reader::new(bytes), count_max, None, &mut floats);
    assert!(floats.len() <= count_max && (float.is_ok() || floats.is_empty()));
}

#[test]
fn damaged_streams_are_refused_or_bounded() {
    let mut noise = Noise(3);
    let mut streams: Vec<Vec<u8>> = byte_shapes()
        .iter()
        .map(|(_, _, values)| bytes_come_back(Effort::Default, &values[..values.len().min(3000)]))
        .collect();
    streams.extend(
        number_shapes().iter().map(|(_, _, _, values, _)| numbers_come_back(&values[..values.len().min(3000)], None)),
    );
    for stream in &streams {
        for _ in 0..60 {
            decode_damaged(&stream[..noise.below(stream.len() as u64) as usize], 4000);
            let mut flipped = stream.clone();
            for _ in 0..=noise.below(3) {
                // The first bytes say the most.
                let reach = if noise.below(2) == 0 { 24.min(stream.len()) } else { stream.len() };
                flipped[noise.below(reach as u64) as usize] ^= 1 << noise.below(8);
            }
            decode_damaged(&flipped, 4000);
        }
        for end in 0..stream.len().min(40) {
            decode_damaged(&stream[..end], 4000);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_to_something_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_damaged(&bytes, 4000);
    }

    #[test]
    fn numbers_of_any_width_come_back(
        values in prop::collection::vec((any::<u64>(), 0..64_u32), 0..700), top in 0..64_u32, factor in 1..2000_u64,
    ) {
        let values: Vec<u64> = values.iter().map(|(value, bits)| (value >> bits >> top).wrapping_mul(factor)).collect();
        numbers_come_back(&values, None);
        let narrow: Vec<u32> = values.iter().map(|value| *value as u32).collect();
        for effort in [Effort::Fast, Effort::Default, Effort::Thorough, Effort::Small] {
            let mut out = Vec::new();
            NumberCoder::new(effort).encode_u32(&narrow, None, &mut out);
            FloatCoder::new(effort).encode_f64(&values, None, &mut out);
            let (mut back, mut floats) = (Vec::new(), Vec::new());
            let mut reader = Reader::new(&out);
            NumberDecoder::new().decode_u32(&mut reader, narrow.len(), None, &mut back).expect("numbers");
            FloatDecoder::new().decode_f64(&mut reader, values.len(), None, &mut floats).expect("floats");
            prop_assert!(reader.is_empty());
            prop_assert_eq!(&back, &narrow);
            prop_assert_eq!(&floats, &values);
        }
    }
}
