//! `measure SCENARIO SUBJECT N` runs one row N times; `measure` alone lists the rows.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rows = relent_benches::rows();
    let [scenario, subject, n] = arguments.as_slice() else {
        for row in rows {
            println!("{row:?}");
        }
        return ExitCode::SUCCESS;
    };
    let row = rows
        .iter()
        .find(|row| row.scenario.name() == scenario && row.subject == subject);
    match (row, n.parse()) {
        (Some(row), Ok(n)) => {
            (row.run)(n);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("measure SCENARIO SUBJECT N; no arguments list scenarios and subjects");
            ExitCode::from(2)
        }
    }
}
