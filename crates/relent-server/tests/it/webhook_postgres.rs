//! Tests of webhooks with effects in the transaction of their record, on PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Extension, Router};
use futures_util::future::join_all;
use http::{Response, StatusCode};
use relent_server::postgres::pool;
use relent_server::store::Postgres;
use relent_server::transactional::{Transactional, WorkError};
use relent_server::webhook::{Delivery, WebhookLayer};

use crate::servers;
use crate::support::{Message, serve, verifier};

const NOW: u64 = 1_800_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_one_effect_when_it_is_acknowledged() {
    let Some(server) = servers::postgres(&["fsync=off", "log_min_messages=fatal"]) else {
        return;
    };
    let store = Postgres::new(pool(&server.config(), 4).unwrap());
    store.create_tables().await.unwrap();
    let client = store.pool().get().await.unwrap();
    let create = "CREATE TABLE payments (message TEXT NOT NULL)";
    client.batch_execute(create).await.unwrap();

    let failures = Arc::new(AtomicU64::new(3));
    let handle = move |Extension(once): Extension<Transactional<Postgres>>,
                       Extension(delivery): Extension<Delivery>| async move {
        let left = failures.load(Ordering::SeqCst);
        failures.store(left.saturating_sub(1), Ordering::SeqCst);
        let settled = once.run(|transaction| {
            let id = delivery.id().to_owned();
            Box::pin(async move {
                let insert = "INSERT INTO payments VALUES ($1)";
                transaction.execute(insert, &[&id]).await?;
                let status = match left {
                    3 => return Err(WorkError::from("the disk is full")),
                    2 => StatusCode::NOT_FOUND,
                    1 => StatusCode::BAD_GATEWAY,
                    _ => StatusCode::CREATED,
                };
                let mut response = Response::new("success");
                *response.status_mut() = status;
                Ok(response)
            })
        });
        let settled = settled.await;
        settled
            .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
            .into_response()
    };
    let layer = WebhookLayer::new(store.clone(), "acquirer", verifier())
        .clock(|| UNIX_EPOCH + Duration::from_secs(NOW))
        .wait(Duration::from_secs(60))
        .transactional();
    let address = serve(Router::new().route("/hook", post(handle)).layer(layer)).await;
    let payments = async || {
        let count = client.query_one("SELECT count(*) FROM payments", &[]);
        count.await.unwrap().get::<_, i64>(0)
    };
    for status in [500, 404, 502] {
        let reply = Message::new("msg_1", NOW).send(&address).await;
        assert_eq!(reply.status, status, "{}", reply.body);
        assert_eq!(payments().await, 0);
    }
    let copies = (0..8).map(|_| Message::new("msg_1", NOW).send(&address));
    let replies = join_all(copies).await;
    let mut replayed = 0;
    for reply in replies {
        assert_eq!(
            (reply.status, &*reply.body),
            (StatusCode::CREATED, "success")
        );
        replayed += u32::from(reply.field("idempotent-replayed").is_some());
    }
    assert_eq!((replayed, payments().await), (7, 1));
}
