//! Each store decides as the core does, and keeps what it has promised to keep.

#![allow(clippy::unwrap_used, reason = "tests may")]

use relent_server::store::{Memory, conformance};

#[tokio::test(flavor = "multi_thread")]
async fn memory_decides_as_the_core_does() {
    for seed in 0..20 {
        conformance::check(Memory::new, 2000, seed).await;
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use relent_server::store::{Sqlite, conformance};

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite_decides_as_the_core_does() {
        for seed in 0..3 {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("keys.db");
            conformance::check(|| Sqlite::open(&file).unwrap(), 600, seed).await;
        }
    }
}
