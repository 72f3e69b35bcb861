//! Opens workers whose executions never end, prints a line when all executions run, and ends when its standard input is
//! closed. Arguments: the URL of the server, the schema, the number of workers, and of executions of each worker.

use std::io::{Read, Write, stdin, stdout};

use stepfast_tests::fixtures::worker_group::hold;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, schema, workers, executions] = &arguments[..] else {
        return Err(std::io::Error::other("expected a URL, a schema and two numbers"));
    };
    let number = |text: &String| text.parse::<usize>().map_err(std::io::Error::other);
    let (workers, executions) = (number(workers)?, number(executions)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let engines = runtime.block_on(hold(url, schema, workers, executions));
    let mut out = stdout().lock();
    writeln!(out, "all run")?;
    out.flush()?;
    stdin().lock().read_to_end(&mut Vec::new())?;
    drop(engines);
    Ok(())
}
