//! The floor for PostgreSQL: a loop with `SKIP LOCKED` alone, in the tables of the store. Each operation is one
//! statement, which is one durable commit.

use relent_outbox::message::MessageId;
use relent_server::postgres::Client;

use super::{ENDPOINTS, Failed, Floor, MESSAGES, PAYLOAD, WORKER};

/// The writes that any outbox needs. Each message has its own identifier and payload, and is enqueued once. Times are
/// those of the database. A claim takes the earliest due messages of endpoints that this worker owns, and skips
/// locked rows. Each row is settled with the fencing token of its claim, which must still be that of its endpoint.
/// Each attempt is stored. Endpoints are known by their numbers. Not included: notifications of other workers, order
/// keys, and messages that another worker has abandoned.
pub(super) struct Fenced(Client);

const TIME: &str = "time AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)";

impl Fenced {
    pub(super) async fn new(client: Client) -> Result<Self, Failed> {
        let endpoint = client
            .prepare(
                "INSERT INTO relent_endpoint_1 (tenant, name, spec, on_dead_letter, owner, fence)
                 VALUES ('', $1, '', 0, $2, 1)",
            )
            .await?;
        for number in 0..ENDPOINTS {
            let name = number.to_string();
            client.execute(&endpoint, &[&name, &WORKER]).await?;
        }
        let worker = "INSERT INTO relent_worker_1 VALUES ($1, 1::bigint << 60)";
        client.execute(worker, &[&WORKER]).await?;
        Ok(Self(client))
    }
}

/// A row, its endpoint and its fencing token, by column.
type Rows = (Vec<i64>, Vec<i64>, Vec<i64>);

impl Floor for Fenced {
    type Rows = Rows;

    async fn enqueue(&self, round: u64) -> Result<(), Failed> {
        let many = MESSAGES as usize;
        let endpoints: Vec<_> = (0..MESSAGES).map(|number| 1 + number % ENDPOINTS).collect();
        let ids: Vec<_> = (0..MESSAGES)
            .map(|_| MessageId::new().to_string())
            .collect();
        let events: Vec<_> = (0..MESSAGES)
            .map(|number| format!("{round}-{number}"))
            .collect();
        let insert = self.0.prepare_cached(&format!(
            "WITH {TIME},
             input AS MATERIALIZED (
                 SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
                     $7::bigint[], $8::text[]) AS i (endpoint, id, event, topic, content_type, payload, delay, order_key)),
             new AS (
                 INSERT INTO relent_message_1 (id, endpoint, event, topic, content_type, payload, created)
                 SELECT id, endpoint, event, topic, content_type, payload, now FROM input, time
                 ON CONFLICT (endpoint, event) DO NOTHING RETURNING row, id)
             INSERT INTO relent_delivery_1 (row, endpoint, due, began, order_key)
             SELECT row, endpoint, now + delay, now, order_key FROM new JOIN input USING (id), time"
        )).await?;
        let new = self
            .0
            .execute(
                &insert,
                &[
                    &endpoints,
                    &ids,
                    &events,
                    &vec![""; many],
                    &vec!["application/json"; many],
                    &vec![&PAYLOAD[..]; many],
                    &vec![0_i64; many],
                    &vec![None::<&str>; many],
                ],
            )
            .await?;
        match new {
            new if new == many as u64 => Ok(()),
            new => Err(format!("the floor has enqueued {new}").into()),
        }
    }

    async fn claim(&self) -> Result<Rows, Failed> {
        let claim = self.0.prepare_cached(&format!(
            "WITH {TIME},
             own AS MATERIALIZED (
                 SELECT e.id, e.fence FROM relent_endpoint_1 AS e
                 JOIN unnest($2::bigint[], $3::bigint[]) AS w (id, fence) USING (id, fence)
                 WHERE e.owner = $1 AND e.activity = 0
                     AND EXISTS (SELECT FROM relent_worker_1, time WHERE id = $1 AND until > now)
                 FOR NO KEY UPDATE OF e SKIP LOCKED),
             due AS MATERIALIZED (
                 SELECT d.row, own.fence FROM time, own, LATERAL (
                     SELECT row FROM relent_delivery_1 WHERE endpoint = own.id AND state = 0 AND due <= now
                     ORDER BY due LIMIT $4::bigint FOR UPDATE SKIP LOCKED) AS d),
             claimed AS (
                 UPDATE relent_delivery_1 AS d SET state = 1, fence = due.fence, attempt = attempt + 1
                 FROM due WHERE d.row = due.row
                 RETURNING d.row, d.endpoint, d.fence, d.attempt, d.session, d.began)
             SELECT row, claimed.endpoint, fence, attempt, session, began, id, content_type, payload
             FROM claimed JOIN relent_message_1 USING (row)"
        )).await?;
        let endpoints: Vec<_> = (1..=ENDPOINTS).collect();
        let fences = vec![1_i64; endpoints.len()];
        let rows = self
            .0
            .query(&claim, &[&WORKER, &endpoints, &fences, &MESSAGES])
            .await?;
        let mut claimed = Rows::default();
        for row in rows {
            claimed.0.push(row.try_get(0)?);
            claimed.1.push(row.try_get(1)?);
            claimed.2.push(row.try_get(2)?);
            // The data for sending, and for the schedule.
            let (_, _): (i64, i64) = (row.try_get(3)?, row.try_get(5)?);
            let (_, _): (Vec<u8>, Vec<u8>) = (row.try_get(4)?, row.try_get(8)?);
            let (_, _): (String, String) = (row.try_get(6)?, row.try_get(7)?);
        }
        Ok(claimed)
    }

    async fn settle(&self, (rows, endpoints, fences): &Rows) -> Result<usize, Failed> {
        let many = rows.len();
        // The state to match is in a column, so that each row is looked up by its number, which is the fastest way.
        let settle = self.0.prepare_cached(&format!(
            "WITH {TIME},
             own AS MATERIALIZED (
                 SELECT id, fence FROM relent_endpoint_1 WHERE id = ANY($2::bigint[]) ORDER BY id FOR NO KEY UPDATE),
             i AS MATERIALIZED (
                 SELECT *, 1::smallint AS running
                 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::bigint[], $6::text[],
                     $7::bytea[], $8::bigint[], $9::bigint[], $10::bigint[], $11::integer[], $12::text[], $13::text[],
                     $14::text[])
                     AS i (row, endpoint, fence, state, wait, reason, session, number, began, took, status, error,
                         excerpt, address)),
             settled AS (
                 UPDATE relent_delivery_1 AS d SET state = i.state, due = coalesce(now + wait, due),
                     ended = CASE WHEN i.state > 1 THEN now END, reason = i.reason, session = i.session
                 FROM time, i JOIN own ON own.id = i.endpoint AND own.fence = i.fence
                 WHERE d.row = i.row AND d.state = i.running AND d.fence = i.fence AND d.attempt = i.number
                 RETURNING i.*)
             INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address)
             SELECT row, number, began, took, status, error, excerpt, address FROM settled"
        )).await?;
        let settled = self
            .0
            .execute(
                &settle,
                &[
                    rows,
                    endpoints,
                    fences,
                    &vec![2_i16; many],
                    &vec![None::<i64>; many],
                    &vec![""; many],
                    &vec![&[1_u8; 50][..]; many],
                    &vec![1_i64; many],
                    &vec![1_i64; many],
                    &vec![1_i64; many],
                    &vec![200_i32; many],
                    &vec![""; many],
                    &vec!["ok"; many],
                    &vec!["192.0.2.1:443"; many],
                ],
            )
            .await?;
        Ok(usize::try_from(settled)?)
    }
}

/// A loop without fencing tokens: it claims any pending messages, in any order, and settles them without checking the
/// owner. Events must not be enqueued twice, all messages have one payload, and all attempts are equal.
pub(super) struct Unfenced(pub(super) Client);

impl Floor for Unfenced {
    type Rows = Vec<i64>;

    async fn enqueue(&self, round: u64) -> Result<(), Failed> {
        let events: Vec<_> = (0..MESSAGES)
            .map(|number| format!("{round}-{number}"))
            .collect();
        let insert = self
            .0
            .prepare_cached(
                "WITH new AS (
                     INSERT INTO relent_message_1 (id, endpoint, event, topic, content_type, payload, created)
                     SELECT 'msg_' || event || '_000000000000000000000', 1 + n % 10, event, '', 'application/json', $2, 1
                     FROM unnest($1::text[]) WITH ORDINALITY AS i (event, n) RETURNING row, endpoint)
                 INSERT INTO relent_delivery_1 (row, endpoint, due, began) SELECT row, endpoint, 1, 1 FROM new",
            )
            .await?;
        self.0.execute(&insert, &[&events, &&PAYLOAD[..]]).await?;
        Ok(())
    }

    async fn claim(&self) -> Result<Vec<i64>, Failed> {
        let claim = self
            .0
            .prepare_cached(
                "WITH due AS MATERIALIZED (
                     SELECT row FROM relent_delivery_1 WHERE state = 0 AND due <= 2 LIMIT 100 FOR UPDATE SKIP LOCKED),
                 claimed AS (
                     UPDATE relent_delivery_1 SET state = 1, fence = 1, attempt = attempt + 1
                     WHERE row IN (SELECT row FROM due) RETURNING row)
                 SELECT row, id, content_type, payload FROM claimed JOIN relent_message_1 USING (row)",
            )
            .await?;
        let claimed = self.0.query(&claim, &[]).await?;
        Ok(claimed.iter().map(|row| row.get(0)).collect())
    }

    async fn settle(&self, rows: &Vec<i64>) -> Result<usize, Failed> {
        let settle = self
            .0
            .prepare_cached(
                "WITH settled AS (
                     UPDATE relent_delivery_1 SET state = 2, session = $2, ended = 1
                     WHERE row = ANY($1::bigint[]) AND state = 1 AND fence = 1 RETURNING row)
                 INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address)
                 SELECT row, 1, 1, 1, 200, '', 'ok', '192.0.2.1:443' FROM settled",
            )
            .await?;
        let settled = self.0.execute(&settle, &[rows, &&[1_u8; 50][..]]).await?;
        Ok(usize::try_from(settled)?)
    }
}
