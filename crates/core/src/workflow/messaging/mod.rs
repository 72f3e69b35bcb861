//! Messages, events, tokens and questions in the code of workflows.

mod change;
mod get_event;
mod lookup;
mod question;
mod receive;
mod send;
mod set_event;
mod stream;
mod token;

pub(crate) use get_event::get_event;
pub use get_event::{GetEvent, GetEventWithin};
pub use question::{Ask, AskWithin, Question, QuestionId, ReceiveQuestion, ReceiveQuestionWithin};
pub(crate) use question::{answer, receive_question};
pub(crate) use receive::receive;
pub use receive::{Receive, ReceiveWithin};
pub use send::SendFromWorkflow;
pub(crate) use send::send;
pub use set_event::SetEvent;
pub(crate) use set_event::set_event;
pub(crate) use stream::write_stream;
pub use stream::{StepScope, StreamWriter, WriteStream};
pub(crate) use token::create_token;
pub use token::{CreateToken, Token, TokenAnswer, TokenResult, TokenResultWithin};
