//! A server that speaks S3, for benches and for trying things: `s3_server BUCKET...` prints where it is and what to sign
//! with. Its files lie in `TMPDIR` and go when it is killed or its standard input ends.

use std::io::Read;

use pagehaul_testkit::s3_server::S3Server;

fn main() {
    let buckets: Vec<String> = std::env::args().skip(1).collect();
    let server = S3Server::start(&buckets.iter().map(String::as_str).collect::<Vec<_>>());
    println!("export AWS_ENDPOINT_URL={}", server.endpoint());
    for (name, value) in server.environment() {
        println!("export {name}={value}");
    }
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
}
