//! Groups of pglz's: a control byte, and for each of its bits, from the lowest on, an item. 0 is a literal byte; 1 a match of two bytes,
//! or of three if the low four bits of its first one are all set (src/common/pg_lzcompress.c).

pub(super) const ITEMS: usize = 8;

/// A group's items by what they are, the first one lowest. Behind them stands whatever there was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Items {
    pub(super) literals: u64,
    pub(super) firsts: u64,
    pub(super) seconds: u64,
    pub(super) thirds: u64,
}

/// How many items there are of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) literals: usize,
    pub(super) firsts: usize,
    pub(super) seconds: usize,
    pub(super) thirds: usize,
}

impl Counts {
    pub(super) fn total(self) -> usize {
        self.literals + self.firsts + self.seconds + self.thirds
    }
}

/// Goes through a group of `control` of at most `room` bytes, item by item: `one` is told what each byte is and how many there were before it,
/// and gives the byte.
fn walk(control: u8, room: usize, mut one: impl FnMut(Kind, &Counts) -> u8) -> Counts {
    let mut counts = Counts::default();
    for item in 0..ITEMS {
        if counts.total() == room {
            break;
        }
        if control >> item & 1 == 0 {
            one(Kind::Literal, &counts);
            counts.literals += 1;
            continue;
        }
        let first = one(Kind::First, &counts);
        counts.firsts += 1;
        if counts.total() == room {
            break;
        }
        one(Kind::Second, &counts);
        counts.seconds += 1;
        if first & 0xf == 0xf && counts.total() < room {
            one(Kind::Third, &counts);
            counts.thirds += 1;
        }
    }
    counts
}

enum Kind {
    Literal,
    First,
    Second,
    Third,
}

/// The group of `control` at the beginning of `bytes`, which may end in it.
pub(super) fn items_in(control: u8, bytes: &[u8]) -> (Items, Counts) {
    let mut items = Items::default();
    let counts = walk(control, bytes.len(), |kind, counts| {
        let value = bytes[counts.total()];
        let (word, place) = match kind {
            Kind::Literal => (&mut items.literals, counts.literals),
            Kind::First => (&mut items.firsts, counts.firsts),
            Kind::Second => (&mut items.seconds, counts.seconds),
            Kind::Third => (&mut items.thirds, counts.thirds),
        };
        *word |= u64::from(value) << (8 * place);
        value
    });
    (items, counts)
}

/// Puts the group of `control` at the beginning of `bytes`, as much of it as there is room for.
pub(super) fn put_items(control: u8, items: Items, bytes: &mut [u8]) -> Counts {
    walk(control, bytes.len(), |kind, counts| {
        let (word, place) = match kind {
            Kind::Literal => (items.literals, counts.literals),
            Kind::First => (items.firsts, counts.firsts),
            Kind::Second => (items.seconds, counts.seconds),
            Kind::Third => (items.thirds, counts.thirds),
        };
        let value = (word >> (8 * place)) as u8;
        bytes[counts.total()] = value;
        value
    })
}
