//! As much of T-SQL as the statements have that are sent here: words, names, texts, numbers.

/// A piece of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A word or number, upper case.
    Word(String),
    /// `[name]`.
    Name(String),
    /// `N'text'`.
    Text(String),
    /// One sign.
    Sign(char),
}

/// Cuts a batch into its pieces; comments are left out.
pub(super) fn pieces(batch: &str) -> Vec<Piece> {
    let signs: Vec<char> = batch.chars().collect();
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < signs.len() {
        match signs[at] {
            '-' if signs.get(at + 1) == Some(&'-') => {
                while at < signs.len() && signs[at] != '\n' {
                    at += 1;
                }
            }
            'N' if signs.get(at + 1) == Some(&'\'') => {
                let (text, end) = quoted(&signs, at + 2, '\'');
                pieces.push(Piece::Text(text));
                at = end;
            }
            '\'' => {
                let (text, end) = quoted(&signs, at + 1, '\'');
                pieces.push(Piece::Text(text));
                at = end;
            }
            '[' => {
                let (name, end) = quoted(&signs, at + 1, ']');
                pieces.push(Piece::Name(name));
                at = end;
            }
            sign if sign.is_alphanumeric() || sign == '_' || sign == '@' => {
                let start = at;
                while at < signs.len() && (signs[at].is_alphanumeric() || "_@.".contains(signs[at])) {
                    at += 1;
                }
                pieces.push(Piece::Word(signs[start..at].iter().collect::<String>().to_uppercase()));
            }
            sign => {
                if !sign.is_whitespace() {
                    pieces.push(Piece::Sign(sign));
                }
                at += 1;
            }
        }
    }
    pieces
}

/// What stands before `end`, doubled ones inside taken once; and the place behind it.
fn quoted(signs: &[char], start: usize, end: char) -> (String, usize) {
    let mut text = String::new();
    let mut at = start;
    while at < signs.len() {
        if signs[at] == end {
            if signs.get(at + 1) != Some(&end) {
                return (text, at + 1);
            }
            at += 1;
        }
        text.push(signs[at]);
        at += 1;
    }
    panic!("a quote is left open in a batch: {}", signs.iter().collect::<String>());
}

/// Everything behind WITH that the model and msdb care for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Options {
    /// Algorithm and level.
    pub(super) packing: Option<(String, String)>,
    pub(super) buffer_count: Option<u64>,
    pub(super) transfer_size: Option<u64>,
    pub(super) words: Vec<String>,
    pub(super) description: String,
    pub(super) moves: Vec<(String, String)>,
}

/// A BACKUP or RESTORE.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    pub(super) verb: String,
    /// DATABASE, LOG, HEADERONLY, ...
    pub(super) kind: String,
    pub(super) database: String,
    pub(super) devices: Vec<String>,
    pub(super) options: Options,
}

/// Reads the BACKUP or RESTORE of which `batch` consists.
pub(super) fn statement(batch: &str) -> Statement {
    let pieces = pieces(batch);
    let word = |at: usize| match pieces.get(at) {
        Some(Piece::Word(word)) => word.clone(),
        _ => String::new(),
    };
    let is_with = |piece: &Piece| *piece == Piece::Word("WITH".to_owned());
    let with = pieces.iter().position(is_with).unwrap_or(pieces.len());
    let devices = pieces[..with].windows(3).filter_map(|three| match three {
        [Piece::Word(kind), Piece::Sign('='), Piece::Text(path)] if ["DISK", "URL"].contains(&kind.as_str()) => {
            Some(path.clone())
        }
        _ => None,
    });
    let database = pieces.iter().take(with).find_map(|piece| match piece {
        Piece::Name(name) => Some(name.clone()),
        _ => None,
    });
    Statement {
        verb: word(0),
        kind: word(1),
        database: database.unwrap_or_default(),
        devices: devices.collect(),
        options: options(&pieces[with.min(pieces.len())..]),
    }
}

fn options(pieces: &[Piece]) -> Options {
    let mut options = Options::default();
    for (at, piece) in pieces.iter().enumerate() {
        let Piece::Word(word) = piece else { continue };
        let next = |offset: usize| pieces.get(at + offset);
        let number = || match next(2) {
            Some(Piece::Word(number)) => number.parse().ok(),
            _ => None,
        };
        match word.as_str() {
            "COMPRESSION" => {
                options.packing.get_or_insert_with(|| ("MS_XPRESS".to_owned(), String::new()));
            }
            // ENCRYPTION has an algorithm, too.
            "ALGORITHM" if options.packing.is_some() => {
                if let (Some(Piece::Word(name)), Some(packing)) = (next(2), options.packing.as_mut())
                    && !name.starts_with("AES")
                {
                    packing.0.clone_from(name);
                }
            }
            "LEVEL" => {
                if let (Some(Piece::Word(name)), Some(packing)) = (next(2), options.packing.as_mut()) {
                    packing.1.clone_from(name);
                }
            }
            "BUFFERCOUNT" => options.buffer_count = number(),
            "MAXTRANSFERSIZE" => options.transfer_size = number(),
            "DESCRIPTION" => {
                if let Some(Piece::Text(text)) = next(2) {
                    options.description.clone_from(text);
                }
            }
            "MOVE" => {
                if let (Some(Piece::Text(name)), Some(Piece::Text(path))) = (next(1), next(3)) {
                    options.moves.push((name.clone(), path.clone()));
                }
            }
            _ => {}
        }
        options.words.push(word.clone());
    }
    options
}

impl Options {
    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|own| own == word)
    }
}
