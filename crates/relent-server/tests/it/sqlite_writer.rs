//! Tests of the SQLite writer with faulty work.

use std::sync::mpsc;

use relent_server::sqlite::{Writer, WriterError};

const TABLE: &str = "CREATE TABLE rows (name TEXT NOT NULL PRIMARY KEY)";
const INSERT: &str = "INSERT INTO rows VALUES (?1)";

fn open(directory: &tempfile::TempDir) -> Writer {
    Writer::open(directory.path().join("rows.db"), |connection| {
        connection.execute_batch(TABLE)
    })
    .unwrap()
}

async fn insert(writer: &Writer, name: &'static str) -> Result<(), WriterError> {
    let insert = writer.run(move |connection| {
        connection.execute(INSERT, [name])?;
        Ok::<_, WriterError>(())
    });
    insert.await
}

async fn names(writer: &Writer) -> Vec<String> {
    let names = writer.run(|connection| {
        let mut select = connection.prepare("SELECT name FROM rows ORDER BY name")?;
        let names = select.query_map([], |row| row.get(0))?;
        names.collect::<Result<_, _>>().map_err(WriterError::from)
    });
    names.await.unwrap()
}

/// Work that ends the shared transaction commits nothing, neither from before nor from after that, and gets an error.
/// Earlier jobs in the transaction are undone, and get `Undone`. Later jobs are committed.
#[tokio::test]
async fn work_that_ends_the_shared_transaction_gets_an_error() {
    for end in [
        "COMMIT",
        "ROLLBACK",
        "ROLLBACK; BEGIN",
        "INSERT OR ROLLBACK INTO rows VALUES ('seed')",
        "COMMIT; BEGIN",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let writer = open(&directory);
        insert(&writer, "seed").await.unwrap();
        // All jobs are in one transaction, since the thread is blocked meanwhile.
        let (go, held) = mpsc::channel::<()>();
        let hold = writer.run(move |_| {
            assert!(held.recv().is_err());
            Ok::<_, WriterError>(())
        });
        let rogue = writer.run(move |connection| {
            connection.execute(INSERT, ["rogue, before"])?;
            drop(connection.execute_batch(end));
            drop(connection.execute(INSERT, ["rogue, after"]));
            Ok::<_, WriterError>(())
        });
        let release = async { drop(go) };
        let (first, last) = (insert(&writer, "first"), insert(&writer, "last"));
        let (_, first, rogue, last, ()) = tokio::join!(biased; hold, first, rogue, last, release);
        let names = names(&writer).await;
        assert!(
            matches!(rogue, Err(WriterError::TransactionEnded)),
            "{end}: {rogue:?}"
        );
        assert!(
            !names.iter().any(|name| name.starts_with("rogue")),
            "{end}: {names:?}"
        );
        assert_eq!(
            first.is_ok(),
            names.iter().any(|name| name == "first"),
            "{end}: {first:?}, {names:?}"
        );
        assert!(matches!(last, Ok(())), "{end}: {last:?}");
        assert!(names.iter().any(|name| name == "last"), "{end}: {names:?}");
    }
}

/// SQLite rolls back on a full disk. A job that returns SQLite's error gets it. A job that ignores it gets the advice
/// to return it. When there is space again, everything works.
#[tokio::test]
async fn on_a_full_disk_the_message_says_to_return_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let writer = open(&directory);
    let most = |pages: u32| {
        writer.run(move |connection| {
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
            Ok::<_, WriterError>(())
        })
    };
    most(8).await.unwrap();
    const FILL: &str = "INSERT INTO rows VALUES (hex(randomblob(100000)))";
    let told = writer.run(|connection| {
        connection.execute(FILL, [])?;
        Ok::<_, WriterError>(())
    });
    let told = told.await.unwrap_err();
    assert!(told.to_string().contains("full"), "{told}");
    assert!(!told.to_string().contains("ROLLBACK"), "{told}");
    let went_on = writer.run(|connection| {
        drop(connection.execute(FILL, []));
        Ok::<_, WriterError>(())
    });
    let went_on = went_on.await.unwrap_err();
    assert!(went_on.to_string().contains("full disk"), "{went_on}");
    most(10_000).await.unwrap();
    insert(&writer, "room").await.unwrap();
    assert_eq!(names(&writer).await, ["room"]);
}
