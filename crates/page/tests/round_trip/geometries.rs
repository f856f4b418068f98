//! Geometries as PostGIS stores them.

use crate::random::Random;

const HAS_Z: u8 = 1;
const HAS_M: u8 = 2;
const HAS_BOX: u8 = 4;
const IS_GEODETIC: u8 = 8;
const VERSION_2: u8 = 0x40;

/// The payload of a geometry of any kind; now and then of one that PostGIS would not make.
pub(crate) fn any_geometry(random: &mut Random) -> Vec<u8> {
    let dimensions = random.pick(&[0, 0, 0, 0, HAS_Z, HAS_M, HAS_Z | HAS_M]);
    let sphere = if random.chance(10) { IS_GEODETIC } else { 0 };
    let has_box = random.chance(70);
    let flags = VERSION_2 | dimensions | sphere | if has_box { HAS_BOX } else { 0 };
    let mut shape = Shape { bytes: Vec::new(), axes: vec![(f64::MAX, f64::MIN); 2 + dimensions.count_ones() as usize] };
    shape.put(random, 0);
    let mut payload = vec![0, 0x10, 0xE6, flags];
    if has_box && sphere > 0 {
        payload.extend((0..6).flat_map(|_| (random.below(2000) as f32 / 1000.0 - 1.0).to_le_bytes()));
    } else if has_box {
        payload.extend(shape.axes.iter().flat_map(|axis| outside(*axis)).flat_map(f32::to_le_bytes));
    }
    payload.extend(shape.bytes);
    match random.below(60) {
        0 => payload[3] |= 0x10,
        1 => payload.truncate(random.below(payload.len())),
        2 => payload.extend(random.bytes(4)),
        3 => {
            let at = random.below(payload.len());
            payload[at] ^= 1 << random.below(8);
        }
        _ => {}
    }
    payload
}

/// A TOAST chunk of points that are near one another, cut as chunks are; now and then another shape begins in it.
pub(crate) fn chunk(random: &mut Random) -> Vec<u8> {
    const CHUNK_BYTES: usize = 1996;
    let mut bytes = Vec::new();
    let mut point = [1_100_000.0, 4_800_000.0];
    while bytes.len() < CHUNK_BYTES + 16 {
        if random.chance(2) {
            bytes.extend([2_u32, 30].map(u32::to_le_bytes).as_flattened());
        }
        for coordinate in &mut point {
            *coordinate += random.below(2000) as f64 - 1000.0;
            bytes.extend((*coordinate / 1e5).to_le_bytes());
        }
    }
    let start = random.below(16);
    bytes[start..start + CHUNK_BYTES].to_vec()
}

/// The f32 around two f64.
fn outside((least, greatest): (f64, f64)) -> [f32; 2] {
    let (below, above) = (least as f32, greatest as f32);
    [
        if f64::from(below) > least { below.next_down() } else { below },
        if f64::from(above) < greatest { above.next_up() } else { above },
    ]
}

struct Shape {
    bytes: Vec<u8>,
    /// The least and the greatest coordinate of each axis.
    axes: Vec<(f64, f64)>,
}

impl Shape {
    fn put(&mut self, random: &mut Random, depth: usize) {
        match random.below(if depth < 3 { 10 } else { 7 }) {
            0..=2 => {
                self.words(&[1, 1]);
                self.points(random, 1, false);
            }
            3..=4 => {
                let count = random.pick(&[0, 2, 3, 7, 30]);
                self.words(&[random.pick(&[2, 8, 14]), count]);
                self.points(random, count, false);
            }
            5..=6 => {
                let rings: Vec<u32> = (0..random.below(4)).map(|_| random.pick(&[0, 1, 2, 5, 12])).collect();
                self.words(&[3, rings.len() as u32]);
                self.words(&rings);
                if rings.len() % 2 == 1 {
                    self.words(&[0]);
                }
                let is_closed = random.chance(95);
                rings.iter().for_each(|count| self.points(random, *count, is_closed));
            }
            _ => {
                let count = random.below(4);
                self.words(&[random.pick(&[4, 5, 6, 7, 15]), count as u32]);
                (0..count).for_each(|_| self.put(random, depth + 1));
            }
        }
    }

    fn words(&mut self, words: &[u32]) {
        self.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    fn points(&mut self, random: &mut Random, count: u32, is_ring: bool) {
        let start = self.bytes.len();
        for _ in 0..count {
            for axis in 0..self.axes.len() {
                let near = (random.below(36_000_000) as f64 - 18_000_000.0) / 1e5;
                // Now and then nearer to zero than any f32.
                let coordinate = if random.chance(4) { near / 1e300 } else { near };
                self.bytes.extend(coordinate.to_le_bytes());
                let (least, greatest) = &mut self.axes[axis];
                (*least, *greatest) = (least.min(coordinate), greatest.max(coordinate));
            }
        }
        if is_ring && count > 1 {
            let point = 8 * self.axes.len();
            self.bytes.truncate(self.bytes.len() - point);
            self.bytes.extend_from_within(start..start + point);
        }
    }
}
