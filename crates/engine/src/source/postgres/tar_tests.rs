//! What is accepted here, other readers of tar understand in the same way.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pagehaul_testkit::random::Random;

use super::tar::tests::{header, seal};
use super::tar::{BLOCK_BYTES, TarEntry, TarKind, padding, parse_header};

/// What lies somewhere: files with their content, links with what they point to, directories.
type Tree = BTreeMap<Vec<u8>, (char, Vec<u8>)>;

/// Fields that are changed at random: name, mode, size, time, kind, link, the format's name, prefix.
const FIELDS: [std::ops::Range<usize>; 8] =
    [0..100, 100..108, 124..136, 136..148, 156..157, 157..257, 257..265, 345..500];

/// An archive of a few entries, of which one is a little wrong.
fn archive(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = 1 + random.below(4);
    let changed = random.below(count);
    for number in 0..count {
        let kind = [b'0', b'0', b'2', b'5'][random.below(4) as usize];
        let length = if kind == b'0' { random.below(1500) } else { 0 };
        let name =
            format!("{}{number}{}", "d/".repeat(random.below(3) as usize), "n".repeat(random.below(90) as usize));
        let mut block = header(name.as_bytes(), kind, format!("{length:011o}").as_bytes());
        if kind == b'2' {
            block[157..163].copy_from_slice(b"points");
        }
        if number == changed {
            for _ in 0..=random.below(2) {
                let field = FIELDS[random.below(8) as usize].clone();
                let at = field.start + random.below(field.len() as u64) as usize;
                let plain = b"01234567 \0/.x\x80\xff";
                block[at] = plain[random.below(plain.len() as u64) as usize];
            }
        }
        seal(&mut block);
        bytes.extend_from_slice(&block);
        bytes.extend(random.bytes(length as usize));
        bytes.resize(bytes.len() + padding(length), 0);
    }
    bytes.resize(bytes.len() + 2 * BLOCK_BYTES, 0);
    bytes
}

/// What we find; None if anything is refused.
fn read_here(archive: &[u8]) -> Option<Vec<(TarEntry, Vec<u8>)>> {
    let (mut at, mut found) = (0, Vec::new());
    loop {
        let block: &[u8; BLOCK_BYTES] = archive.get(at..at + BLOCK_BYTES)?.try_into().ok()?;
        let Some(entry) = parse_header(block).ok()? else { return Some(found) };
        at += BLOCK_BYTES;
        let size = usize::try_from(entry.size_bytes).ok()?;
        let content = archive.get(at..at.checked_add(size)?)?.to_vec();
        at += size + padding(entry.size_bytes);
        found.push((entry, content));
    }
}

/// As a tree; None where one entry lies in the way of another, which no server sends and each reader does as it likes.
fn tree_of(entries: Vec<(TarEntry, Vec<u8>)>) -> Option<Tree> {
    let mut tree = Tree::new();
    for (entry, content) in entries {
        let what = match entry.kind {
            TarKind::File => ('f', content),
            TarKind::Directory => ('d', Vec::new()),
            TarKind::Symlink { target } => ('l', target),
        };
        if tree.insert(entry.path, what).is_some() {
            return None;
        }
    }
    let parents: Vec<Vec<u8>> = tree
        .keys()
        .flat_map(|path| {
            (0..path.len()).filter(|at| path[*at] == b'/').map(|at| path[..at].to_vec()).collect::<Vec<_>>()
        })
        .collect();
    for parent in parents {
        if tree.entry(parent).or_insert(('d', Vec::new())).0 != 'd' {
            return None;
        }
    }
    Some(tree)
}

/// What `program` makes of it.
fn extracted(program: &str, archive: &[u8]) -> Tree {
    let directory = tempfile::tempdir().unwrap();
    let (file, into) = (directory.path().join("archive.tar"), directory.path().join("into"));
    std::fs::write(&file, archive).unwrap();
    std::fs::create_dir(&into).unwrap();
    let mut command = Command::new(program);
    command.arg("-xf").arg(&file).arg("-C").arg(&into).stdout(Stdio::null()).stderr(Stdio::null());
    // What it complains about is its own affair; what it makes counts.
    command.status().unwrap();
    Command::new("chmod").args(["-R", "u+rwX"]).arg(&into).status().unwrap();
    let mut tree = Tree::new();
    walk(&into, &into, &mut tree);
    tree
}

fn walk(root: &Path, directory: &Path, tree: &mut Tree) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let kind = path.symlink_metadata().unwrap().file_type();
        if kind.is_dir() {
            tree.insert(name, ('d', Vec::new()));
            walk(root, &path, tree);
        } else if kind.is_symlink() {
            tree.insert(name, ('l', std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()));
        } else {
            tree.insert(name, ('f', std::fs::read(&path).unwrap()));
        }
    }
}

#[test]
fn s05_what_is_accepted_here_gnu_tar_and_bsdtar_read_alike() {
    let mut random = Random::new("s05_what_is_accepted_here_gnu_tar_and_bsdtar_read_alike");
    let programs: Vec<&str> = ["tar", "bsdtar"]
        .into_iter()
        .filter(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
        .collect();
    assert!(!programs.is_empty(), "not even tar is here");
    if programs.len() < 2 {
        eprintln!("SKIPPED: bsdtar (libarchive-tools) is not here: compared with tar alone");
    }
    let (mut compared, mut refused) = (0, 0);
    while compared < 300 {
        let archive = archive(&mut random);
        let Some(tree) = read_here(&archive).and_then(tree_of) else {
            refused += 1;
            continue;
        };
        for program in &programs {
            let other = extracted(program, &archive);
            let names = |tree: &Tree| {
                tree.iter().map(|(name, what)| format!("{} {:?}", what.0, OsStr::from_bytes(name))).collect::<Vec<_>>()
            };
            assert_eq!(names(&tree), names(&other), "{program}");
            assert_eq!(tree, other, "{program}");
        }
        compared += 1;
    }
    assert!(refused > 50, "{refused} archives of {compared} were wrong: the changes do not reach what is looked at");
}
