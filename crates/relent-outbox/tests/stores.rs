//! Each store keeps what the trait promises.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use std::future::Future;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;

/// Plays random steps through the store, so often, and finds the fewest steps that fail.
fn play_random_steps<F: Future<Output = ()>>(cases: u32, play: impl Fn(Vec<u32>) -> F) {
    let runtime = Runtime::new().unwrap();
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let steps = vec(any::<u32>(), 1..80);
    let played = TestRunner::new(config).run(&steps, |steps| {
        runtime.block_on(play(steps));
        Ok(())
    });
    played.unwrap();
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::cell::Cell;

    use relent_outbox::store::{Sqlite, conformance};

    use super::play_random_steps;

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite_keeps_what_the_trait_promises() {
        let directory = tempfile::tempdir().unwrap();
        let files = Cell::new(0);
        conformance::check(async || {
            files.set(files.get() + 1);
            let file = directory.path().join(format!("{}.db", files.get()));
            Sqlite::open(file).unwrap()
        })
        .await;
    }

    #[test]
    fn sqlite_does_as_the_model_does() {
        play_random_steps(60, async |steps: Vec<u32>| {
            let directory = tempfile::tempdir().unwrap();
            let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
            conformance::play(&store, &steps).await;
        });
    }
}
