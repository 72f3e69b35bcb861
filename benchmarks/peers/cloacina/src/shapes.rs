//! The graphs of `stepfast bench simple`, `parallel` and `pipeline`, as workflows of Cloacina.

use cloacina::{Context, TaskError, task, workflow};
use serde_json::{Value, json};

/// The shape of a workflow.
#[derive(Clone, Copy)]
pub enum Shape {
    /// One task, which returns a greeting.
    Simple,
    /// A task that makes three batches of numbers, three tasks that multiply one batch each, and a task that combines them.
    Parallel,
    /// Three tasks in a row, which extract numbers, double and load them.
    Pipeline,
}

impl Shape {
    /// Returns the shape of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Simple, Self::Parallel, Self::Pipeline].into_iter().find(|shape| shape.as_str() == name)
    }

    /// The name of the shape and of its workflow.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Parallel => "parallel",
            Self::Pipeline => "pipeline",
        }
    }

    /// The number of tasks.
    pub fn task_count(self) -> usize {
        match self {
            Self::Simple => 1,
            Self::Parallel => 5,
            Self::Pipeline => 3,
        }
    }

    /// The key of the workflow's output in its last context.
    pub fn output_key(self) -> &'static str {
        match self {
            Self::Simple => "greeting",
            Self::Parallel | Self::Pipeline => "sum",
        }
    }

    /// The output that every workflow must have.
    pub fn expected_output(self) -> &'static str {
        match self {
            Self::Simple => "Hello, world!",
            // (1 + 2 + 3) * 2 + (4 + 5 + 6) * 3 + (7 + 8 + 9) * 4
            Self::Parallel => "153",
            Self::Pipeline => "30",
        }
    }
}

/// Returns the numbers under a key of the context.
fn numbers(context: &Context<Value>, key: &str) -> Vec<i64> {
    let values = context.get(key).and_then(Value::as_array);
    values.into_iter().flatten().filter_map(Value::as_i64).collect()
}

/// Writes the multiples of a batch into the context.
fn multiply(context: &mut Context<Value>, batch: &str, factor: i64, key: &str) -> Result<(), TaskError> {
    let products: Vec<_> = numbers(context, batch).iter().map(|x| x * factor).collect();
    context.insert(key, json!(products))?;
    Ok(())
}

#[workflow(name = "simple", description = "One task")]
pub mod simple {
    use super::*;

    #[task(id = "greet", dependencies = [])]
    pub async fn greet(context: &mut Context<Value>) -> Result<(), TaskError> {
        let name = context.get("name").and_then(Value::as_str).unwrap_or_default();
        let greeting = format!("Hello, {name}!");
        context.insert("greeting", json!(greeting))?;
        Ok(())
    }
}

#[workflow(name = "parallel", description = "Three tasks between two others")]
pub mod parallel {
    use super::*;

    #[task(id = "setup", dependencies = [])]
    pub async fn setup(context: &mut Context<Value>) -> Result<(), TaskError> {
        context.insert("batch_1", json!([1, 2, 3]))?;
        context.insert("batch_2", json!([4, 5, 6]))?;
        context.insert("batch_3", json!([7, 8, 9]))?;
        Ok(())
    }

    #[task(id = "multiply_by_2", dependencies = ["setup"])]
    pub async fn multiply_by_2(context: &mut Context<Value>) -> Result<(), TaskError> {
        multiply(context, "batch_1", 2, "products_1")
    }

    #[task(id = "multiply_by_3", dependencies = ["setup"])]
    pub async fn multiply_by_3(context: &mut Context<Value>) -> Result<(), TaskError> {
        multiply(context, "batch_2", 3, "products_2")
    }

    #[task(id = "multiply_by_4", dependencies = ["setup"])]
    pub async fn multiply_by_4(context: &mut Context<Value>) -> Result<(), TaskError> {
        multiply(context, "batch_3", 4, "products_3")
    }

    #[task(id = "merge", dependencies = ["multiply_by_2", "multiply_by_3", "multiply_by_4"])]
    pub async fn merge(context: &mut Context<Value>) -> Result<(), TaskError> {
        let keys = ["products_1", "products_2", "products_3"];
        let sum: i64 = keys.iter().flat_map(|key| numbers(context, key)).sum();
        context.insert("sum", json!(sum.to_string()))?;
        Ok(())
    }
}

#[workflow(name = "pipeline", description = "Three tasks in a row")]
pub mod pipeline {
    use super::*;

    #[task(id = "extract", dependencies = [])]
    pub async fn extract(context: &mut Context<Value>) -> Result<(), TaskError> {
        context.insert("numbers", json!([1, 2, 3, 4, 5]))?;
        Ok(())
    }

    #[task(id = "double", dependencies = ["extract"])]
    pub async fn double(context: &mut Context<Value>) -> Result<(), TaskError> {
        multiply(context, "numbers", 2, "doubled")
    }

    #[task(id = "load", dependencies = ["double"])]
    pub async fn load(context: &mut Context<Value>) -> Result<(), TaskError> {
        let sum: i64 = numbers(context, "doubled").iter().sum();
        context.insert("sum", json!(sum.to_string()))?;
        Ok(())
    }
}
