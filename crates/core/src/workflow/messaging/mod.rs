//! Messages, events, tokens and questions in the code of workflows.

mod change;
mod get_event;
mod lookup;
mod outbox;
mod question;
mod receive;
mod send;
mod set_event;
mod step_scope;
mod stream;
mod token;

pub(crate) use get_event::get_event;
pub use get_event::{GetEvent, GetEventWithin};
pub(crate) use outbox::send_workflow;
pub use outbox::{OutboxMessage, SEND_WORKFLOW};
pub use question::{Ask, AskWithin, Question, QuestionId, ReceiveQuestion, ReceiveQuestionWithin};
pub(crate) use question::{answer, receive_question};
pub(crate) use receive::receive;
pub use receive::{Receive, ReceiveWithin};
pub use send::{MessageSender, SendFromStep, SendFromWorkflow};
pub(crate) use send::{OutgoingMessage, send};
pub use set_event::SetEvent;
pub(crate) use set_event::set_event;
pub use step_scope::StepScope;
pub(crate) use stream::write_stream;
pub use stream::{StreamWriter, WriteStream};
pub(crate) use token::create_token;
pub use token::{CreateToken, Token, TokenAnswer, TokenResult, TokenResultWithin};
