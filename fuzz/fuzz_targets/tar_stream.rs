//! The archives of a base backup, unpacked on the way. No path leads elsewhere, every file has as many bytes as it
//! announced, and nothing depends on how the server cut what it sent.
#![no_main]

mod fake_server;

use std::sync::Mutex;

use fake_server::{logged_in, message, ready, result, with_server};
use libfuzzer_sys::fuzz_target;
use pagehaul_engine::backup::cluster_stream::{ClusterStream, Received};
use pagehaul_engine::format::file_table::FileTable;
use pagehaul_engine::pipeline::{StreamPart, StreamSource};
use pagehaul_engine::source::postgres::base_backup::{BaseBackup, Order};
use pagehaul_engine::source::postgres::replication::Replication;
use pagehaul_engine::source::postgres::tar::{BLOCK_BYTES, padding, parse_header};

/// What is read at once.
const PIECE_BYTES: u64 = 4096;

/// Every file with its path and content, and what came besides.
type Unpacked = (Vec<(Vec<u8>, Vec<u8>)>, Received);

fuzz_target!(|data: &[u8]| {
    let Some(([major, mends, split, step], archives)) = data.split_first_chunk::<4>() else { return };
    // The first archive is of a tablespace, the second of the data directory.
    let at = (usize::from(*split) * BLOCK_BYTES).min(archives.len());
    let (mut space, mut base) = (archives[..at].to_vec(), archives[at..].to_vec());
    if mends & 1 == 1 {
        mend(&mut space);
        mend(&mut base);
    }
    let major = if major & 1 == 0 { 14 } else { 17 };
    let whole = unpack(major, [&space, &base], usize::MAX);
    assert_eq!(whole, unpack(major, [&space, &base], usize::from(*step).max(1) * 7));
});

fn unpack(major: u32, archives: [&[u8]; 2], step: usize) -> Option<Unpacked> {
    with_server(conversation(major, archives, step), |settings| {
        let mut server = Replication::connect(settings).expect("a log-in that is always the same");
        let order = Order { label: "fuzz", fast_checkpoint: true, changes_only: false };
        let accepted = BaseBackup::ask(&mut server, &order).expect("an answer that is always the same");
        let base = BaseBackup::begin(server, &accepted).expect("a start that is always the same");
        let table = Mutex::new(FileTable::default());
        let mut stream = ClusterStream::new(base, &table).expect("a table with room");
        let mut files = Vec::new();
        while let Some(StreamPart { file, size_bytes, .. }) = stream.next_part(&|| false).ok()? {
            let path = table.lock().expect("nobody panics").path(file).to_vec();
            assert!(path.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b"..")), "{path:?}");
            let (mut content, mut left) = (Vec::new(), size_bytes);
            while left > 0 {
                let mut piece = vec![0; left.min(PIECE_BYTES) as usize];
                assert!(stream.read(&mut piece, &|| false).ok()?, "nobody stops it");
                left -= piece.len() as u64;
                content.extend(piece);
            }
            files.push((path, content));
        }
        Some((files, stream.finish().ok()?))
    })
}

/// What a server of this version says, the archives in messages of `step` bytes.
fn conversation(major: u32, archives: [&[u8]; 2], step: usize) -> Vec<u8> {
    let position = result(&[&[Some("0/2000028"), Some("1")]]);
    let list = result(&[&[Some("16384"), Some("/space"), Some("8")], &[None, None, Some("8")]]);
    let mut says = [logged_in(major), position.clone(), list].concat();
    let typed = major >= 15;
    let data = |says: &mut Vec<u8>, bytes: &[u8]| {
        for piece in bytes.chunks(step.min(bytes.len().max(1))) {
            let body = if typed { [b"d", piece].concat() } else { piece.to_vec() };
            says.extend(message(b'd', &body));
        }
    };
    if typed {
        says.extend(message(b'H', &[0, 0, 0]));
    }
    for (archive, name) in archives.into_iter().zip([&b"n16384.tar\0/space\0"[..], b"nbase.tar\0\0"]) {
        says.extend(if typed { message(b'd', name) } else { message(b'H', &[0, 0, 0]) });
        data(&mut says, archive);
        if !typed {
            says.extend(message(b'c', b""));
        }
    }
    says.extend(if typed { message(b'd', b"m") } else { message(b'H', &[0, 0, 0]) });
    data(&mut says, b"{}");
    says.extend(message(b'c', b""));
    [says, position, ready()].concat()
}

/// Makes the checksums of headers hold, so that inputs get behind them.
fn mend(archive: &mut [u8]) {
    let mut at = 0usize;
    while let Some(block) = archive.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<BLOCK_BYTES>()) {
        if block.iter().any(|byte| *byte != 0) {
            block[257..265].copy_from_slice(b"ustar\x0000");
            block[345..500].fill(0);
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let size_bytes = match parse_header(block) {
            Ok(Some(entry)) => entry.size_bytes,
            _ => 0,
        };
        let whole = size_bytes.saturating_add(padding(size_bytes.min(1 << 40)) as u64);
        at = at.saturating_add(BLOCK_BYTES).saturating_add(usize::try_from(whole).unwrap_or(usize::MAX));
    }
}
