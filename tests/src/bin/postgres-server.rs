//! Starts a Postgres server, prints its URL, and stops it when standard input is closed. Scripts use it to run several
//! test programs against one server: see `STEPFAST_TEST_POSTGRES_URL`.

use std::io::{Read, Write, stdin, stdout};

use stepfast_tests::fixtures::postgres_server::PostgresServer;

fn main() -> std::io::Result<()> {
    let server = PostgresServer::start();
    let mut out = stdout().lock();
    writeln!(out, "{}", server.url())?;
    out.flush()?;
    let mut rest = Vec::new();
    stdin().lock().read_to_end(&mut rest)?;
    drop(server);
    Ok(())
}
