//! What else than rows a recovery to a point brings back, and what not: the table in the guide's chapter on recovery.

use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_testkit::cluster::default_install;

use super::archived::Archived;

const SETTINGS: &[(&str, &str)] = &[("wal_level", "logical"), ("max_prepared_transactions", "5")];

#[test]
fn f65_prepared_transactions_and_triggers_come_back_and_slots_and_statistics_do_not() {
    let mut archived = Archived::start(&default_install());
    // A server that replays them needs as much room for prepared transactions as the one that made them.
    archived.cluster.run(&["ALTER SYSTEM SET max_prepared_transactions = 5"]);
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    archived.start_server_with(SETTINGS);
    let cluster = &archived.cluster;
    cluster.run(&[
        "CREATE TABLE ledger (number int PRIMARY KEY)",
        "CREATE TABLE made (tag text)",
        "CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO public.made VALUES (tg_tag); END $$",
        "CREATE EVENT TRIGGER notes ON ddl_command_end EXECUTE FUNCTION note()",
        "SELECT pg_create_logical_replication_slot('changes', 'pgoutput')",
        "SELECT pg_create_physical_replication_slot('standby')",
        "INSERT INTO ledger SELECT generate_series(1, 100)",
    ]);
    cluster.run(&["BEGIN; INSERT INTO ledger VALUES (1001); PREPARE TRANSACTION 'before the set'"]);
    archived.backup();
    let cluster = &archived.cluster;
    cluster.run(&["BEGIN; INSERT INTO ledger VALUES (1002); PREPARE TRANSACTION 'after the set'"]);
    cluster.run(&["BEGIN; INSERT INTO ledger VALUES (1003); PREPARE TRANSACTION 'given up'"]);
    cluster.run(&["ROLLBACK PREPARED 'given up'", "SELECT pg_create_restore_point('here')"]);
    cluster.run(&[
        "COMMIT PREPARED 'before the set'",
        "ROLLBACK PREPARED 'after the set'",
        "CREATE TABLE later (i int)",
    ]);
    assert_eq!(cluster.value("SELECT count(*) FROM ledger"), "101");
    cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);

    let copy = archived.recover("here", &["--type", "name", "--target", "here"]).cluster;
    let prepared = "SELECT string_agg(gid, ', ' ORDER BY gid) FROM pg_prepared_xacts";
    assert_eq!(copy.value(prepared), "after the set, before the set");
    assert_eq!(copy.value("SELECT count(*) FROM ledger"), "100", "neither has been committed yet");
    assert_eq!(copy.value("SELECT count(*) FROM pg_replication_slots"), "0");
    let counted = "SELECT n_tup_ins < 100 FROM pg_stat_user_tables WHERE relname = 'ledger'";
    assert_eq!(copy.value(counted), "t", "what was counted before is not known to the copy");
    copy.run(&["COMMIT PREPARED 'before the set'", "COMMIT PREPARED 'after the set'"]);
    assert_eq!(copy.value("SELECT string_agg(number::text, ' ') FROM ledger WHERE number > 1000"), "1001 1002");
    assert_eq!(copy.value("SELECT count(*) FROM made"), "0", "the table of later is not there");
    copy.run(&["CREATE TABLE later (i int)"]);
    assert_eq!(copy.value("SELECT tag FROM made"), "CREATE TABLE", "the event trigger is there and at work");
}
