//! An append-only table whose every row is known with its transaction, commit time and position in WAL.

use jiff::Timestamp;
use pagehaul_engine::terms::Lsn;
use pagehaul_testkit::cluster::Cluster;

/// One committed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) xid: u64,
    /// When it was committed, by the server's own record.
    pub(crate) at: Timestamp,
    /// End of WAL after the commit.
    pub(crate) lsn: Lsn,
}

/// All rows of one timeline's path, in the order of their commits, and the restore points between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) entries: Vec<Entry>,
    /// Names, each with the number of rows before it.
    pub(crate) points: Vec<(String, usize)>,
}

impl Ledger {
    /// Makes the table.
    pub(crate) fn create(cluster: &Cluster) -> Self {
        cluster.run(&["CREATE TABLE ledger (number bigint PRIMARY KEY, body text NOT NULL)"]);
        Ledger::default()
    }

    /// What is left when the path goes another way after the first `count` rows.
    pub(crate) fn branch(&self, count: usize) -> Self {
        Ledger {
            entries: self.entries[..count].to_vec(),
            points: self.points.iter().filter(|(_, before)| *before < count).cloned().collect(),
        }
    }

    /// Commits `count` rows one by one; numbers begin with `first`, which no other path may have.
    pub(crate) fn write(&mut self, cluster: &Cluster, first: u64, count: u64) {
        let mut connection = cluster.connect();
        for number in first..first + count {
            let sql = format!(
                "INSERT INTO ledger VALUES ({number}, repeat(md5('{number}'), 40)) RETURNING pg_current_xact_id()"
            );
            let xid = connection.query_value(&sql).unwrap();
            let sql = format!(
                "SELECT pg_current_wal_insert_lsn(), \
                 round(extract(epoch FROM pg_xact_commit_timestamp('{xid}'::xid)) * 1000000)::bigint"
            );
            let row = connection.query_row_text(&sql, 2).unwrap();
            let text = |column: usize| row[column].clone().unwrap();
            self.entries.push(Entry {
                number,
                xid: xid.parse().unwrap(),
                at: Timestamp::from_microsecond(text(1).parse().unwrap()).unwrap(),
                lsn: text(0).parse().unwrap(),
            });
        }
    }

    /// Makes a restore point here.
    pub(crate) fn mark(&mut self, cluster: &Cluster, name: &str) {
        cluster.value(&format!("SELECT pg_create_restore_point('{name}')"));
        self.points.push((name.to_owned(), self.entries.len()));
    }

    /// The copy holds the first `count` rows, whole, and no other.
    pub(crate) fn assert_prefix(&self, copy: &Cluster, count: usize, why: &str) {
        let sql = "SELECT coalesce(string_agg(number::text, ' ' ORDER BY number), ''), \
                   coalesce(bool_and(body = repeat(md5(number::text), 40)), true) FROM ledger";
        let row = copy.connect().query_row_text(sql, 2).unwrap();
        let mut expected: Vec<u64> = self.entries[..count].iter().map(|entry| entry.number).collect();
        expected.sort_unstable();
        let expected: Vec<String> = expected.iter().map(u64::to_string).collect();
        let found = row[0].clone().unwrap();
        if found != expected.join(" ") {
            let found_count = found.split(' ').filter(|word| !word.is_empty()).count();
            panic!("{why}: {found_count} rows instead of {count}, {:?}", self.entries.get(count.saturating_sub(1)));
        }
        assert_eq!(row[1].as_deref(), Some("t"), "{why}: a row is not as it was");
    }
}
