//! The files of one database: bench/page/files.sql makes the list while the server runs, later nobody needs a server.

use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_page::{Attribute, RelationKind, RelationLayout, ValueType};

/// How a list begins: this, its version, the page size in bytes, the database's name.
const BEGINNING: &str = "# pagehaul page files";
const VERSION: &str = "1";

/// One file.
#[derive(Clone, Debug)]
pub(crate) struct FileOfDatabase {
    pub(crate) path: PathBuf,
    /// heap, toast, sequence, the name of an index's access method, fsm, vm, file or other.
    pub(crate) kind: String,
    /// The number of its first page within the fork.
    pub(crate) first_page: u32,
    pub(crate) relation: String,
    /// What the page codec is told.
    pub(crate) layout: RelationLayout,
}

/// The files of one database, in the order in which a backup takes them.
#[derive(Clone, Debug)]
pub(crate) struct FilesOfDatabase {
    pub(crate) database: String,
    pub(crate) page_size_bytes: u32,
    pub(crate) files: Vec<FileOfDatabase>,
}

impl FilesOfDatabase {
    /// Reads a list.
    ///
    /// # Errors
    /// `Source` if it cannot be read, or is not such a list; the line is named.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let failed = |cause: String| Error::new(ErrorKind::Source, format!("read {}", path.display()), cause);
        let text = std::fs::read_to_string(path).map_err(|cause| failed(cause.to_string()))?;
        Self::parse(&text).map_err(failed)
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut lines = text.lines();
        let first: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
        let [BEGINNING, VERSION, page_size, database] = first[..] else {
            return Err(format!("it does not begin with `{BEGINNING}` and version {VERSION}"));
        };
        let page_size_bytes = page_size.parse().map_err(|cause| format!("`{page_size}` is no page size: {cause}"))?;
        let mut files = Vec::new();
        for (number, line) in lines.enumerate() {
            let file = parse_line(line, page_size_bytes);
            files.push(file.map_err(|cause| format!("line {}: {cause}", number + 2))?);
        }
        files.sort_by(|one, two| one.path.cmp(&two.path));
        Ok(FilesOfDatabase { database: database.to_owned(), page_size_bytes, files })
    }
}

fn parse_line(line: &str, page_size_bytes: u32) -> std::result::Result<FileOfDatabase, String> {
    let parts: Vec<&str> = line.split('\t').collect();
    let [path, kind, first_page, columns, relation] = parts[..] else {
        return Err(format!("{} columns, not path, kind, first page, columns, relation", parts.len()));
    };
    let first_page = first_page.parse().map_err(|cause| format!("`{first_page}` is no page number: {cause}"))?;
    let pages = match kind {
        "heap" | "toast" | "sequence" => RelationKind::Heap,
        "btree" | "hash" | "gist" => RelationKind::Index,
        "gin" => RelationKind::Gin,
        "spgist" => RelationKind::SpGist,
        "file" => RelationKind::NotPages,
        _ => RelationKind::Other,
    };
    let attributes = match columns {
        "-" => Vec::new(),
        list => list.split(',').map(parse_column).collect::<std::result::Result<_, _>>()?,
    };
    let page_size_bytes = if pages == RelationKind::NotPages { 0 } else { page_size_bytes };
    let layout = RelationLayout { kind: pages, page_size_bytes, attributes };
    let (kind, relation) = (kind.to_owned(), relation.to_owned());
    Ok(FileOfDatabase { path: PathBuf::from(path), kind, first_page, relation, layout })
}

/// TYPE_OID:ATTLEN:ALIGNMENT
fn parse_column(text: &str) -> std::result::Result<Attribute, String> {
    let wrong = || format!("`{text}` is no TYPE_OID:ATTLEN:ALIGNMENT");
    let mut numbers = text.split(':');
    let mut next = || numbers.next().ok_or_else(wrong);
    let type_oid = next()?.parse().map_err(|_| wrong())?;
    let length = next()?.parse().map_err(|_| wrong())?;
    let alignment = next()?.parse().map_err(|_| wrong())?;
    Ok(Attribute { value_type: ValueType::of_postgres(type_oid, length), length, alignment })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_understood() {
        let text = "# pagehaul page files\t1\t8192\tone\n\
            /d/base/5/20.1\theap\t131072\t23:4:4,1700:-1:4\tt\n/d/base/5/20_vm\tvm\t0\t-\tt\n\
            /d/base/5/PG_VERSION\tfile\t0\t-\tbase/5/PG_VERSION\n";
        let list = FilesOfDatabase::parse(text).unwrap();
        assert_eq!((list.database.as_str(), list.files.len()), ("one", 3));
        let heap = &list.files[0];
        assert_eq!((heap.kind.as_str(), heap.first_page), ("heap", 131_072));
        let numeric = Attribute { value_type: ValueType::Numeric, length: -1, alignment: 4 };
        assert_eq!(heap.layout.attributes[1], numeric);
        assert_eq!(list.files[1].layout, RelationLayout::other(8192));
        assert_eq!(list.files[2].layout, RelationLayout::default());
    }

    #[test]
    fn other_texts_are_refused_with_the_line() {
        assert!(FilesOfDatabase::parse("").is_err());
        let wrong = FilesOfDatabase::parse("# pagehaul page files\t1\t8192\tone\na\theap\t0\t23:4\tt").unwrap_err();
        assert_eq!(wrong, "line 2: `23:4` is no TYPE_OID:ATTLEN:ALIGNMENT");
    }
}
