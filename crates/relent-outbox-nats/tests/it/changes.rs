//! A change of an endpoint applies once the API has responded, also to attempts that NATS distributes.

use relent_outbox::api::Token;
use relent_outbox_nats::{NatsWorker, NatsWorkerConfig};
use tokio::task::JoinSet;

use crate::nats::queue;
use crate::servers;
use crate::support::local_sender;
use crate::traffic::{change_under_traffic, serve, stores};

#[tokio::test(flavor = "multi_thread")]
async fn with_nats_a_change_applies_once_the_api_responds() {
    let (Some(server), Some(nats)) = (servers::postgres(&["fsync=off"]), servers::nats()) else {
        return;
    };
    let (token, mut tasks) = (Token::new(), JoinSet::new());
    let mut addresses = Vec::new();
    let stores = stores(&server, 2).await;
    for store in &stores {
        let (relay, deliverers) = (queue(&nats).await, queue(&nats).await);
        addresses.push(
            serve(
                store.clone(),
                &token,
                |worker| worker.relay(relay),
                &mut tasks,
            )
            .await,
        );
        let deliverer = NatsWorker::new(deliverers, local_sender(), NatsWorkerConfig::default());
        tasks.spawn(async move {
            deliverer.run(std::future::pending()).await;
        });
    }
    change_under_traffic(stores[0].clone(), &addresses, &token).await;
    tasks.shutdown().await;
}
