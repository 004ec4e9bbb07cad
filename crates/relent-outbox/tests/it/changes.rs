//! A change of an endpoint applies once the API has responded: over sockets, and with several servers.

use std::convert::identity;

use relent_outbox::api::Token;
use relent_outbox::store::Sqlite;
use tokio::task::JoinSet;

use crate::servers;
use crate::traffic::{change_under_traffic, serve, stores};

#[tokio::test(flavor = "multi_thread")]
async fn with_sqlite_a_change_applies_once_the_api_responds() {
    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
    let (token, mut tasks) = (Token::new(), JoinSet::new());
    let server = serve(store.clone(), &token, identity, &mut tasks).await;
    change_under_traffic(store, &[server], &token).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_three_postgresql_servers_a_change_applies_once_the_api_responds() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let (token, mut tasks) = (Token::new(), JoinSet::new());
    let mut addresses = Vec::new();
    let stores = stores(&server, 3).await;
    for store in &stores {
        addresses.push(serve(store.clone(), &token, identity, &mut tasks).await);
    }
    change_under_traffic(stores[0].clone(), &addresses, &token).await;
    tasks.shutdown().await;
}
