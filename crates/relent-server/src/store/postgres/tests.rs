use super::*;
use crate::servers;
use crate::store::conformance;

#[tokio::test]
async fn the_sql_statements_decide_like_the_core_at_any_time() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    // One connection, so that all statements see the session's clock.
    let pool = crate::postgres::pool(&server.config(), 1).unwrap();
    let mut postgres = Postgres::new(pool.clone());
    postgres.sql = Arc::new(Sql::new("current_setting('test.now')::bigint"));
    postgres.create_tables().await.unwrap();
    postgres.create_tables().await.unwrap();
    for seed in 0..16 {
        let set = async |now: relent_core::Instant| {
            let micros = now.as_nanos() / 1000;
            let client = pool.get().await.unwrap();
            let set = format!("SET test.now = '{micros}'");
            client.batch_execute(&set).await.unwrap();
        };
        let begin = relent_core::Instant::from_nanos(seed * 10_000_000_000_000);
        // From seed 6 on the database clock is also set forward and back.
        if seed < 6 {
            conformance::check_in_time(&postgres, set, begin, 1000, seed).await;
        } else {
            // Prevents removals by claims: a record would stay removed when the clock goes back.
            postgres.claims.store(0, Ordering::Relaxed);
            let step = conformance::step;
            conformance::check_at_times(&postgres, set, begin, step, 250, seed).await;
        }
        while postgres.remove_expired(100).await.unwrap() > 0 {}
        let client = pool.get().await.unwrap();
        client
            .batch_execute("TRUNCATE relent_idempotency_1")
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn postgres_finds_unknown_outcomes_by_index_in_order() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let pool = crate::postgres::pool(&server.config(), 1).unwrap();
    let postgres = Postgres::new(pool.clone());
    postgres.create_tables().await.unwrap();
    let client = pool.get().await.unwrap();
    // Ten of 20,000 requests run or are unknown.
    let fill = "INSERT INTO relent_idempotency_1
        SELECT int8send(n) || '', '', '', 1, CASE WHEN n % 2000 = 0 THEN n / 2000 % 2 * 3 ELSE 1 END, 0, 0, false,
            9000000000000000 + n
        FROM generate_series(1, 20000) AS n;
        ANALYZE relent_idempotency_1";
    client.batch_execute(fill).await.unwrap();
    let mut explain = format!("EXPLAIN {}", postgres.sql.find_unknown);
    for (parameter, value) in [("$1", "-1"), ("$2", "''"), ("$3", "100")] {
        explain = explain.replace(parameter, value);
    }
    let plan = tokio_postgres::Client::query(&client, &explain, &[])
        .await
        .unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    let index = "Index Scan using relent_idempotency_1_unknown";
    assert!(plan.contains(index) && !plan.contains("Sort"), "{plan}");
}

#[tokio::test]
async fn a_postgres_store_may_wait_without_limit() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let pool = crate::postgres::pool(&server.config(), 1).unwrap();
    let postgres = Postgres::new(pool).max_wait(Duration::MAX);
    postgres.create_tables().await.unwrap();
    let (key, print) = (Key([1; 32]), Fingerprint([0; 32]));
    let claimed = postgres.claim(&key, 1, print, &ClaimConfig::DEFAULT).await;
    assert!(matches!(claimed, Ok(Claimed::Run { .. })), "{claimed:?}");
}
