//! What a SQL Server sends: the answers to PRELOGIN and LOGIN7, and the tokens behind a batch. Rows have the columns that
//! were told, and a connection that is lost stays lost.
#![no_main]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::source::mssql::address::{Encryption, Password, ServerAddress};
use pagehaul_engine::source::mssql::client::{Answer, Connection, NoWatch};
use pagehaul_engine::source::mssql::questions::Line;
use pagehaul_engine::source::mssql::said::{percent, processed};
use pagehaul_engine::source::mssql::server_facts::ServerFacts;
use pagehaul_engine::source::mssql::server_message::RunError;

/// An answer to PRELOGIN: a version, and that nothing can be encrypted.
const PRELOGIN: &[u8] = &[0, 0, 11, 0, 6, 1, 0, 17, 0, 1, 0xff, 16, 0, 3, 0xe8, 0, 0, 2];
/// LOGINACK of version 16.0.1000, and DONE.
const WELCOME: &[u8] =
    &[0xad, 12, 0, 1, 0x74, 0, 0, 4, 1, b'M', 0, 16, 0, 3, 0xe8, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fuzz_target!(|data: &[u8]| {
    let Some(([what, size], says)) = data.split_first_chunk::<2>() else { return };
    let welcomed = || [packets(PRELOGIN, 4096), packets(WELCOME, 4096)].concat();
    // Tokens mostly, in packets of sizes that cut them anywhere.
    let says = match what % 8 {
        0 => says.to_vec(),
        1 => packets(says, 4096),
        2 => [packets(PRELOGIN, 4096), packets(says, 4096)].concat(),
        3 => [welcomed(), says.to_vec()].concat(),
        _ => [welcomed(), packets(says, 9 + 16 * usize::from(*size))].concat(),
    };
    with_server(says, |address| {
        let Ok(mut connection) = Connection::connect(address) else { return };
        match connection.run("SELECT 1;", &mut NoWatch) {
            Ok(answer) => look(&answer),
            Err(RunError::Lost(_)) => {
                assert!(matches!(connection.run("SELECT 1;", &mut NoWatch), Err(RunError::Lost(_))));
            }
            Err(error) => drop(error.into_error("run a batch")),
        }
    });
});

fn look(answer: &Answer) {
    for result in &answer.results {
        assert!(result.rows.iter().all(|row| row.len() == result.columns.len()));
        for row in &result.rows {
            row.iter().for_each(|value| drop((value.text(), value.int())));
        }
    }
    for message in &answer.messages {
        drop((percent(&message.text), processed(&message.text), Line::parse(&message.text)));
    }
    drop(ServerFacts::read(answer.messages.iter().map(|message| message.text.as_str()), "fuzz"));
}

/// `content` as one response, in packets of at most `size` bytes.
fn packets(content: &[u8], size: usize) -> Vec<u8> {
    let mut pieces = content.chunks(size - 8).peekable();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next() {
        bytes.extend([4, u8::from(pieces.peek().is_none())]);
        bytes.extend((piece.len() as u16 + 8).to_be_bytes());
        bytes.extend([0, 0, 1, 0]);
        bytes.extend(piece);
    }
    bytes
}

/// Runs `client` against a server that sends `says`, whatever it is asked, and then hangs up.
fn with_server(says: Vec<u8>, client: impl FnOnce(&ServerAddress)) {
    static SERVER: OnceLock<(ServerAddress, Sender<Vec<u8>>)> = OnceLock::new();
    let (address, next) = SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("its number").to_string();
        let address = ServerAddress::parse(&at, "fuzz", Password::new("fuzz")).expect("an address");
        let (next, all) = channel();
        std::thread::spawn(move || serve(&listener, &all));
        let connect_timeout = Duration::from_secs(5);
        (ServerAddress { encryption: Encryption::Plain, connect_timeout, ..address }, next)
    });
    next.send(says).expect("the server goes on for ever");
    client(address);
}

fn serve(listener: &TcpListener, all: &Receiver<Vec<u8>>) {
    for says in all {
        let Ok((mut peer, _)) = listener.accept() else { continue };
        // The client may have hung up already.
        peer.write_all(&says).ok();
        peer.shutdown(Shutdown::Write).ok();
        let mut rest = [0; 4096];
        while peer.read(&mut rest).is_ok_and(|count| count > 0) {}
    }
}
