//! Manifests round-trip, and what is damaged, unknown or made to harm is refused.

use super::*;

pub(crate) fn sample() -> Manifest {
    Manifest {
        format_version: FORMAT_VERSION,
        engine_version: "0.1.0".into(),
        label: "20261121-201530F".parse().unwrap(),
        set_id: SetId([1; 16]).to_string(),
        kind: BackupKind::Full,
        prior: Vec::new(),
        prior_set_ids: Vec::new(),
        synthesized_from: None,
        source: "main".parse().unwrap(),
        description: None,
        started_at: "2026-11-21T20:15:30Z".into(),
        finished_at: "2026-11-21T20:16:30Z".into(),
        compression: "zstd:1".into(),
        frame_size_bytes: 131_072,
        transfer_size_bytes: 1 << 20,
        source_bytes: 10,
        stored_bytes: 5,
        file_count: 1,
        vanished_file_count: 0,
        file_table: ObjectDigest { name: "files.table".into(), size_bytes: 3, xxh3: hex64(1), sha256: None },
        page_sums: None,
        frame_digests: None,
        stripes: vec![StripeRecord {
            name: "stripe-0000.phs".into(),
            directory: None,
            size_bytes: 5,
            frame_count: 1,
            index_xxh3: hex64(2),
        }],
        encryption: None,
        parity: None,
        postgres: PostgresRecord {
            version_num: 150_020,
            system_identifier: "7300000000000000001".into(),
            timeline: TimelineId(1),
            start_lsn: Lsn(1),
            stop_lsn: Lsn(2),
            stop_time: Some("2026-11-21T20:16:29.123456Z".into()),
            wal_segment_size_bytes: 16 << 20,
            block_size_bytes: 8192,
            data_checksums: true,
            data_directory: "/data".into(),
            owner: Some("postgres".into()),
            tablespaces: Vec::new(),
            wal_segments: Vec::new(),
            external_files: Vec::new(),
            databases: None,
            bootstrap_role: None,
            postmaster_start_us: None,
        },
        bad_page_count: 0,
        bad_pages: Vec::new(),
        lost_file_count: 0,
        lost_files: Vec::new(),
    }
}

#[test]
fn round_trip_and_valid_json() {
    let bytes = sample().to_bytes().unwrap();
    let back = Manifest::from_bytes(&bytes, "m").unwrap();
    assert_eq!(back.to_bytes().unwrap(), bytes);
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(json["label"], "20261121-201530F");
}

#[test]
fn sets_without_a_stop_time_read_and_stay_as_they_are() {
    let mut older = sample();
    older.postgres.stop_time = None;
    let bytes = older.to_bytes().unwrap();
    assert!(!bytes.windows(9).any(|word| word == b"stop_time"));
    assert_eq!(Manifest::from_bytes(&bytes, "m").unwrap().postgres.stop_time, None);
}

#[test]
fn lost_files_are_kept_and_leave_no_trace_where_there_are_none() {
    let none = sample().to_bytes().unwrap();
    assert!(!none.windows(5).any(|word| word == b"lost_"));
    let mut lost = sample();
    let file = LostFile { path: "base/5/16384".into(), relation: None, reason: "its catalog names it".into() };
    (lost.lost_file_count, lost.lost_files) = (1, vec![file.clone()]);
    let back = Manifest::from_bytes(&lost.to_bytes().unwrap(), "m").unwrap();
    assert_eq!((back.lost_file_count, back.lost_files), (1, vec![file]));
}

#[test]
fn every_flipped_bit_and_every_cut_is_seen() {
    let good = sample().to_bytes().unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::from_bytes(&bad, "m").is_err(), "bit {bit}");
    }
    for length in 0..good.len() {
        assert!(Manifest::from_bytes(&good[..length], "m").is_err(), "cut to {length}");
    }
}

#[test]
fn what_is_not_known_is_refused() {
    let mut newer = sample();
    newer.format_version = 2;
    assert!(Manifest::from_bytes(&newer.to_bytes().unwrap(), "m").unwrap_err().message().contains("version 2"));
    let mut chained = sample();
    chained.kind = BackupKind::Incremental;
    assert!(Manifest::from_bytes(&chained.to_bytes().unwrap(), "m").is_err(), "it names no prior");
    chained.prior = vec!["20261120-201530F".parse().unwrap(), "20261119-201530F".parse().unwrap()];
    chained.prior_set_ids = vec![SetId([2; 16]).to_string(), SetId([3; 16]).to_string()];
    assert_eq!(Manifest::from_bytes(&chained.to_bytes().unwrap(), "m").unwrap().prior, chained.prior);
    chained.prior[1] = chained.label.clone();
    assert!(Manifest::from_bytes(&chained.to_bytes().unwrap(), "m").is_err(), "it is its own prior");
}

#[test]
fn s03_names_that_lead_elsewhere_or_are_those_of_documents_are_refused() {
    for name in ["../../etc/passwd", "/etc/passwd", "a/b", ".", "..", ".hidden", "", "x.json", "x.age", "manifest.json"]
    {
        let change: [fn(&mut Manifest, &str); 4] = [
            |manifest, name| manifest.stripes[0].name = name.into(),
            |manifest, name| manifest.file_table.name = name.into(),
            |manifest, name| {
                manifest.page_sums.iter_mut().flat_map(|sums| &mut sums.objects).for_each(|it| it.name = name.into());
            },
            |manifest, name| manifest.frame_digests.iter_mut().for_each(|it| it.name = name.into()),
        ];
        for change in change {
            let mut hostile = sample();
            let good = hostile.to_bytes().unwrap();
            change(&mut hostile, name);
            let bytes = hostile.to_bytes().unwrap();
            assert!(bytes == good || Manifest::from_bytes(&bytes, "m").is_err(), "{name:?}");
        }
    }
}

#[test]
fn s07_a_manifest_made_to_harm_is_refused_at_once() {
    let good = String::from_utf8(sample().to_bytes().unwrap()).unwrap();
    let body = &good[..good.rfind(",\n  \"").unwrap()];
    let sealed = |text: String| {
        let document: serde_json::Value = serde_json::from_str(&text).ok()?;
        sealed_json::seal(&document, CHECKSUM_KEY).ok()
    };
    let deep = "[".repeat(200_000);
    assert!(Manifest::from_bytes(deep.as_bytes(), "m").is_err());
    for (what, with) in [
        ("\"frame_size_bytes\": ", "18446744073709551615"),
        ("\"frame_size_bytes\": ", "-1"),
        ("\"frame_size_bytes\": ", "1e300"),
        ("\"file_count\": ", "-9223372036854775808"),
        ("\"stripes\": ", "{}"),
        ("\"label\": ", "\"../../x\""),
        ("\"source\": ", "\"a/b\""),
        ("\"set_id\": ", "\"00\""),
    ] {
        let start = body.find(what).unwrap_or_else(|| panic!("{what}")) + what.len();
        let end = start + body[start..].find(|end| [',', '\n'].contains(&end)).unwrap();
        let changed = sealed(format!("{}{with}{}\n}}", &body[..start], &body[end..]));
        // Where a list was cut open it is no document at all.
        let refused = changed.is_none_or(|bytes| Manifest::from_bytes(&bytes, "m").is_err());
        assert!(refused, "{what}{with}");
    }
    let mut circle = sample();
    circle.kind = BackupKind::Incremental;
    for priors in [vec![circle.label.clone()], vec!["20261120-201530F".parse().unwrap(); 2]] {
        circle.prior_set_ids = priors.iter().map(|_| SetId([2; 16]).to_string()).collect();
        circle.prior = priors;
        assert!(Manifest::from_bytes(&circle.to_bytes().unwrap(), "m").is_err(), "{:?}", circle.prior);
    }
}
