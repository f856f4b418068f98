//! A server that says what it was told to say, whatever it is asked, and then hangs up.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::OnceLock;

use pagehaul_engine::source::postgres::conninfo::ConnectSettings;
use pagehaul_engine::source::postgres::tls_settings::TlsSettings;

const PORT: u16 = 5432;

/// Runs `client` against a server that sends `says`.
pub fn with_server<T>(says: Vec<u8>, client: impl FnOnce(&ConnectSettings) -> T) -> T {
    static LISTENER: OnceLock<(UnixListener, PathBuf)> = OnceLock::new();
    let (listener, directory) = LISTENER.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("pagehaul-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the socket");
        let socket = directory.join(format!(".s.PGSQL.{PORT}"));
        std::fs::remove_file(&socket).ok();
        (UnixListener::bind(socket).expect("a socket"), directory)
    });
    let settings = ConnectSettings {
        host: directory.display().to_string(),
        port: PORT,
        user: "fuzz".to_owned(),
        database: "fuzz".to_owned(),
        password: None,
        tls: TlsSettings::off(),
        connect_timeout_s: 5,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let Ok((mut peer, _)) = listener.accept() else { return };
            // The client may have hung up already.
            peer.write_all(&says).ok();
            peer.shutdown(std::net::Shutdown::Write).ok();
            std::io::copy(&mut peer, &mut std::io::sink()).ok();
        });
        client(&settings)
    })
}

/// One message.
pub fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// One result with these rows; None is NULL.
pub fn result(rows: &[&[Option<&str>]]) -> Vec<u8> {
    let mut bytes = message(b'T', &[0, 0]);
    for row in rows {
        let mut body = (row.len() as u16).to_be_bytes().to_vec();
        for value in *row {
            let length = value.map_or(u32::MAX, |text| text.len() as u32);
            body.extend(length.to_be_bytes());
            body.extend(value.unwrap_or_default().as_bytes());
        }
        bytes.extend(message(b'D', &body));
    }
    bytes.extend(message(b'C', b"SELECT\0"));
    bytes
}

/// That the server waits for a command.
pub fn ready() -> Vec<u8> {
    message(b'Z', b"I")
}

/// What a server of this version says until a replication connection stands.
pub fn logged_in(major: u32) -> Vec<u8> {
    let version = format!("{major}0001");
    [message(b'R', &0u32.to_be_bytes()), ready(), result(&[&[Some(&version)]]), ready()].concat()
}
