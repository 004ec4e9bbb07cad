//! `relent deliver`: sends messages until their receivers acknowledge them.

mod allowed_receivers;
mod disabled;
mod endpoints;
mod list;
mod log;
mod nats;
mod new_key;
mod publish;
mod resend;
mod send;
mod serve;
mod server;
mod store;
mod values;
mod verify;
mod wait;
mod worker;

use clap::Subcommand;

use crate::exit_status::ExitError;
use crate::runtime::block_on;

/// The end of `relent deliver --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Start the server, with everything it needs in the working directory:
      relent deliver serve

  Register an endpoint, and send it a message:
      relent deliver endpoints add shop https://shop.example/notify
      relent deliver send --endpoint shop --event order-17 -d '{\"order\":17}'

  List dead letters with the reason, and send those of two hours again:
      relent deliver dead-letters
      relent deliver replay --endpoint shop --since 2h

  Send one message without a server, and wait for its acknowledgement:
      relent deliver send https://shop.example/notify -d '{\"order\":17}'

A message is repeated until its receiver acknowledges it or its schedule ends.
All attempts have the same webhook-id, with which the receiver drops duplicates.

Exit status: 0; 1 on failure; 2 if the command line, or a file that it names,
is wrong; 124 if --timeout passes; 128 + n after signal n.
`relent deliver SUBCOMMAND --help` has more.";

/// The subcommands of `relent deliver`.
#[derive(Subcommand, Debug)]
pub(crate) enum DeliverCommand {
    /// Accept messages over HTTP, and send each until it is acknowledged
    #[command(after_long_help = serve::AFTER_HELP)]
    Serve(serve::ServeArgs),
    /// Make attempts that `serve` dispatches through NATS, on other machines
    #[command(after_long_help = worker::AFTER_HELP)]
    Worker(worker::WorkerArgs),
    /// Send one message, to a URL or through a server
    #[command(after_long_help = send::AFTER_HELP)]
    Send(Box<send::SendArgs>),
    /// Send an event to all endpoints that subscribe to its topic
    #[command(after_long_help = publish::AFTER_HELP)]
    Publish(publish::PublishArgs),
    /// List messages, the latest first
    #[command(after_long_help = list::AFTER_HELP)]
    List(list::ListArgs),
    /// List dead letters with the reason
    #[command(after_long_help = list::DEAD_LETTERS_HELP)]
    DeadLetters(list::DeadLettersArgs),
    /// Show a message with its attempts
    #[command(after_long_help = list::SHOW_HELP)]
    Show(list::ShowArgs),
    /// Send messages again, under the same identifiers
    #[command(after_long_help = resend::EACH_HELP)]
    Resend(resend::IdArgs),
    /// Make pending messages due now
    #[command(after_long_help = resend::NOW_HELP)]
    SendNow(resend::SendNowArgs),
    /// Cancel pending messages and dead letters
    #[command(after_long_help = resend::EACH_HELP)]
    Cancel(resend::IdArgs),
    /// Send all dead letters again, or other messages of a state, a period and an endpoint
    #[command(after_long_help = resend::AFTER_HELP)]
    Replay(resend::ReplayArgs),
    /// List, register, test, enable, disable and delete endpoints
    #[command(subcommand, after_long_help = endpoints::AFTER_HELP)]
    Endpoints(endpoints::EndpointsCommand),
    /// Make a signing key
    #[command(after_long_help = new_key::AFTER_HELP)]
    NewKey(new_key::NewKeyArgs),
    /// Verify the signature of a message; its body is read from standard input
    #[command(after_long_help = verify::AFTER_HELP)]
    Verify(verify::VerifyArgs),
}

/// Runs a subcommand and returns the exit status.
///
/// # Errors
/// The subcommand failed; the message says why.
pub(crate) fn run(command: DeliverCommand) -> Result<i32, ExitError> {
    match command {
        DeliverCommand::Serve(args) => run_server(serve::run(&args)),
        DeliverCommand::Worker(args) => run_server(worker::run(&args)),
        DeliverCommand::Verify(args) => verify::run(&args),
        DeliverCommand::NewKey(args) => new_key::run(&args),
        DeliverCommand::Send(args) => block_on(send::run(*args)).map_err(ExitError::failed)?,
        DeliverCommand::List(args) => run_client(list::list(args)),
        DeliverCommand::DeadLetters(args) => run_client(list::dead_letters(args)),
        DeliverCommand::Show(args) => run_client(list::show(args)),
        DeliverCommand::Publish(args) => run_client(publish::run(args)),
        DeliverCommand::SendNow(args) => run_client(resend::send_now(args)),
        DeliverCommand::Resend(args) => run_client(resend::resend(args)),
        DeliverCommand::Cancel(args) => run_client(resend::cancel(args)),
        DeliverCommand::Replay(args) => run_client(resend::replay(args)),
        DeliverCommand::Endpoints(command) => run_client(endpoints::run(command)),
    }
}

/// Runs a server process until a signal asks for the end, on a multi-threaded runtime.
fn run_server(serving: impl Future<Output = Result<i32, ExitError>>) -> Result<i32, ExitError> {
    log::to_stderr();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| ExitError::failed(format!("cannot start: {error}")))?;
    let result = runtime.block_on(serving);
    runtime.shutdown_background();
    result
}

/// Runs a client command against a server.
fn run_client(asking: impl Future<Output = Result<(), ExitError>>) -> Result<i32, ExitError> {
    block_on(asking).map_err(ExitError::failed)?.map(|()| 0)
}
