//! What the blocks of one file say: the medium, its family, its sets.

use pagehaul_engine::error::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::bytes::BakFile;
use crate::damage::{DamageList, Layer};
use crate::mtf::{
    Block, BlockKind, MediaFamily, MtfSink, Place, Sector, SetAttributes, SetStart, StreamHeader, StreamKind,
    TapeHeader, Want,
};
use crate::source::{Layout, layout};
use crate::sql::Configuration;
use crate::walk::{FileSink, walk_headers};

/// Sets of one file at most; a file of more is no backup anybody made.
const SETS_MAX: usize = 1 << 16;

/// What a set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SetKind {
    /// The whole database.
    Full,
    /// What changed since a full one.
    Differential,
    /// Log.
    Log,
    /// Some files or file groups.
    Partial,
    /// What changed in some files or file groups.
    PartialDifferential,
}

impl SetKind {
    /// The word for people.
    pub fn name(self) -> &'static str {
        match self {
            SetKind::Full => "full",
            SetKind::Differential => "differential",
            SetKind::Log => "log",
            SetKind::Partial => "partial",
            SetKind::PartialDifferential => "partial differential",
        }
    }
}

/// One backup set in one file.
#[derive(Clone, Debug)]
pub struct SetFacts {
    /// What its first block says.
    pub start: SetStart,
    /// What the server said at the beginning.
    pub first: Option<Configuration>,
    /// What it said at the end.
    pub last: Option<Configuration>,
    /// Whether there are pages; without any the set holds log.
    pub has_data: bool,
    /// Whether it has its last blocks: the end and the filemark behind it.
    pub is_ended: bool,
    /// Where it begins.
    pub at: Place,
}

impl SetFacts {
    /// What the server said last.
    pub fn configuration(&self) -> Option<&Configuration> {
        self.last.as_ref().or(self.first.as_ref())
    }

    /// What the set holds: by its blocks, and for parts of a database by the letter that the server gave it.
    pub fn kind(&self) -> SetKind {
        let letter = self.configuration().map_or('D', |config| config.type_letter);
        match (self.has_data, self.start.attributes.is_differential(), letter) {
            (false, ..) => SetKind::Log,
            (true, false, 'F' | 'P') => SetKind::Partial,
            (true, _, 'G' | 'Q') => SetKind::PartialDifferential,
            (true, false, _) => SetKind::Full,
            (true, true, _) => SetKind::Differential,
        }
    }

    /// How it was made.
    pub fn attributes(&self) -> SetAttributes {
        self.start.attributes
    }
}

/// One file.
#[derive(Clone, Debug)]
pub struct FileFacts {
    /// Its path.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Plain or compressed.
    pub layout: Layout,
    /// What its first block says.
    pub tape: Option<TapeHeader>,
    /// Which file of which media set it is.
    pub family: Option<MediaFamily>,
    /// Its sets, in order.
    pub sets: Vec<SetFacts>,
    /// What is wrong with it.
    pub damage: DamageList,
}

/// Reads what the blocks of `file` say; pages and log are passed over.
///
/// # Errors
/// `Damage` if it is no backup file, `Source` if it cannot be read. Damage inside is in the facts.
pub fn read_facts(file: &BakFile) -> Result<FileFacts> {
    let mut facts = FactsSink::new(file)?;
    walk_headers(file, &mut facts)?;
    let facts = facts.finish();
    if facts.tape.is_none() || facts.family.is_none() {
        let cause = facts.damage.listed.first().map_or("it has no sound first block".to_owned(), ToString::to_string);
        return Err(Error::new(ErrorKind::Damage, format!("read backup file {}", facts.name), cause)
            .hint("pagehaul bak verify lists all damage of the file"));
    }
    Ok(facts)
}

/// Collects facts while a file is walked.
pub struct FactsSink {
    /// What is known so far.
    pub facts: FileFacts,
    /// The block whose streams come.
    pub block: Option<BlockKind>,
}

impl FactsSink {
    /// Nothing known of `file` but its size and layout.
    ///
    /// # Errors
    /// Those of [`layout`].
    pub fn new(file: &BakFile) -> Result<Self> {
        let facts = FileFacts {
            name: file.name.clone(),
            size_bytes: file.size_bytes()?,
            layout: layout(file)?,
            tape: None,
            family: None,
            sets: Vec::new(),
            damage: DamageList::default(),
        };
        Ok(FactsSink { facts, block: None })
    }

    /// The facts when the file has ended.
    pub fn finish(mut self) -> FileFacts {
        self.check_end();
        if self.facts.sets.is_empty() {
            self.tell(Layer::Structure, None, "there is no backup set in it".to_owned());
        }
        self.facts
    }

    /// Number of the set that is at hand.
    pub fn set_number(&self) -> Option<u16> {
        self.facts.sets.last().map(|set| set.start.position)
    }

    /// Notes damage at a place, or of the whole file.
    pub fn tell(&mut self, layer: Layer, at: Option<Place>, cause: String) {
        let set = self.set_number();
        let FileFacts { name, damage, .. } = &mut self.facts;
        match at {
            Some(at) => damage.at(name, layer, at, set, cause),
            None => damage.whole(name, layer, cause),
        }
    }

    /// A set that begins, or a file that ends, before the set had its last blocks.
    fn check_end(&mut self) {
        let unended = self.facts.sets.last().filter(|set| !set.is_ended);
        if let Some(position) = unended.map(|set| set.start.position) {
            let cause = format!("backup set {position} has no end: the backup was interrupted, or the file is cut");
            self.tell(Layer::Structure, None, cause);
        }
    }

    fn set_start(&mut self, at: Place, block: &Block) {
        self.check_end();
        match SetStart::parse(block) {
            Ok(start) if self.facts.sets.len() < SETS_MAX => {
                let (first, last) = (None, None);
                self.facts.sets.push(SetFacts { start, first, last, has_data: false, is_ended: false, at });
            }
            Ok(_) => self.tell(Layer::Structure, Some(at), format!("more than {SETS_MAX} sets")),
            Err(cause) => self.tell(Layer::Structure, Some(at), cause),
        }
    }

    fn check_address(&mut self, at: Place, block: &Block) {
        let Some(unit) = self.facts.tape.as_ref().map(|tape| u64::from(tape.logical_block_bytes)) else { return };
        let Some(set_at) = self.facts.sets.last().map(|set| set.at.stream_offset) else { return };
        // Other units were not seen in any file, so nothing is known of their addresses.
        let has_address = !matches!(block.kind, BlockKind::SetStart | BlockKind::SetEnd | BlockKind::Filemark);
        let distance = at.stream_offset.saturating_sub(set_at);
        if unit == 1024 && has_address && distance != block.logical_address.saturating_mul(unit) {
            let cause = format!(
                "descriptor block {} says that it lies {} KiB behind its set's begin, but is {distance} bytes behind it",
                block.kind.name(),
                block.logical_address
            );
            self.tell(Layer::Structure, Some(at), cause);
        }
    }

    fn configuration(&mut self, at: Place, content: &[u8]) {
        let parsed = Configuration::parse(content);
        let is_last = self.block == Some(BlockKind::LastConfiguration);
        let config = match parsed {
            Ok(config) => config,
            Err(cause) => return self.tell(Layer::Description, Some(at), cause),
        };
        let Some(set) = self.facts.sets.last_mut() else { return };
        let differs = is_last && set.first.as_ref().is_some_and(|first| !is_same_database(first, &config));
        let slot = if is_last { &mut set.last } else { &mut set.first };
        *slot = Some(config);
        if differs {
            let cause = "the descriptions at the set's begin and end are not of the same database".to_owned();
            self.tell(Layer::Description, Some(at), cause);
        }
    }
}

/// Whether what never changes during a backup is the same in both.
fn is_same_database(first: &Configuration, last: &Configuration) -> bool {
    let files = |config: &Configuration| {
        config.files.iter().map(|file| (file.file_id, file.logical_name.clone(), file.file_guid)).collect::<Vec<_>>()
    };
    first.database_name == last.database_name
        && first.server_name == last.server_name
        && first.server_version == last.server_version
        && first.database_version == last.database_version
        && first.binding_guid == last.binding_guid
        && first.family_guid == last.family_guid
        && first.started_at == last.started_at
        && files(first) == files(last)
}

impl MtfSink for FactsSink {
    fn block(&mut self, at: Place, block: &Block) {
        if self.facts.tape.is_none() && block.kind != BlockKind::Tape && at.stream_offset == 0 {
            self.tell(Layer::Structure, Some(at), "the file does not begin with a TAPE block".to_owned());
        }
        let before = self.block.replace(block.kind);
        match block.kind {
            BlockKind::Tape => match TapeHeader::parse(block) {
                Ok(tape) => self.facts.tape = Some(tape),
                Err(cause) => self.tell(Layer::Structure, Some(at), cause),
            },
            BlockKind::SetStart => self.set_start(at, block),
            BlockKind::Filemark | BlockKind::Data => {
                if let Some(set) = self.facts.sets.last_mut() {
                    set.is_ended |= block.kind == BlockKind::Filemark && before == Some(BlockKind::SetEnd);
                    set.has_data |= block.kind == BlockKind::Data;
                }
            }
            _ => {}
        }
        self.check_address(at, block);
    }

    fn stream(&mut self, _at: Place, stream: &StreamHeader) -> Want {
        match stream.kind {
            StreamKind::MediaFamily | StreamKind::Configuration => Want::Gather,
            _ => Want::Skip,
        }
    }

    fn gathered(&mut self, at: Place, stream: &StreamHeader, content: &[u8]) {
        match stream.kind {
            StreamKind::Configuration => self.configuration(at, content),
            StreamKind::MediaFamily => match MediaFamily::parse(content) {
                Ok(family) => self.facts.family = Some(family),
                Err(cause) => self.tell(Layer::Structure, Some(at), cause),
            },
            _ => {}
        }
    }

    fn sector(&mut self, _at: Place, _sector: Sector<'_>) {}

    fn stream_end(&mut self, _at: Place, _stream: &StreamHeader, _is_cut: bool) {}

    fn damage(&mut self, at: Place, cause: String) {
        self.tell(Layer::Structure, Some(at), cause);
    }
}

impl FileSink for FactsSink {
    fn chunk_damage(&mut self, at: Place, cause: String) {
        self.tell(Layer::Chunk, Some(at), cause);
    }
}
