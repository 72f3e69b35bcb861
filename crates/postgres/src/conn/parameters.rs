//! The types of statements' parameters, for sending a statement without asking the server about it first.

use std::sync::LazyLock;

use tokio_postgres::types::Type;

use crate::conn::statements::Sql;

/// By statement: every parameter has its type behind it in the text, as in `$1::uuid[]`.
static TYPES: LazyLock<Vec<Vec<Type>>> =
    LazyLock::new(|| Sql::ALL.iter().map(|sql| types_in(sql.text())).collect());

/// The types of a statement's parameters, in their order.
pub(crate) fn types(sql: Sql) -> &'static [Type] {
    TYPES.get(sql as usize).map_or(&[], Vec::as_slice)
}

fn types_in(text: &str) -> Vec<Type> {
    let mut types = Vec::new();
    for after in text.split('$').skip(1) {
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (number, rest) = after.split_at(digits);
        let (Ok(number), Some(name)) = (number.parse::<usize>(), rest.strip_prefix("::")) else { continue };
        let letters = name.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(name.len());
        let (name, rest) = name.split_at(letters);
        if types.len() < number {
            types.resize(number, Type::UNKNOWN);
        }
        if let Some(place) = number.checked_sub(1).and_then(|place| types.get_mut(place)) {
            *place = named(name, rest.starts_with("[]"));
        }
    }
    types
}

fn named(name: &str, is_array: bool) -> Type {
    match (name, is_array) {
        ("bigint", false) => Type::INT8,
        ("bigint", true) => Type::INT8_ARRAY,
        ("integer", false) => Type::INT4,
        ("integer", true) => Type::INT4_ARRAY,
        ("smallint", false) => Type::INT2,
        ("smallint", true) => Type::INT2_ARRAY,
        ("boolean", false) => Type::BOOL,
        ("boolean", true) => Type::BOOL_ARRAY,
        ("text", false) => Type::TEXT,
        ("text", true) => Type::TEXT_ARRAY,
        ("bytea", false) => Type::BYTEA,
        ("bytea", true) => Type::BYTEA_ARRAY,
        ("uuid", false) => Type::UUID,
        ("uuid", true) => Type::UUID_ARRAY,
        ("timestamptz", false) => Type::TIMESTAMPTZ,
        ("timestamptz", true) => Type::TIMESTAMPTZ_ARRAY,
        _ => Type::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_of_every_statement_has_a_type() {
        for sql in Sql::ALL {
            assert!(!types(*sql).contains(&Type::UNKNOWN), "{sql:?}: {:?}", types(*sql));
        }
        assert_eq!(
            types(Sql::Fence),
            [
                Type::INT8,
                Type::INT2,
                Type::INT8,
                Type::INT8,
                Type::TEXT,
                Type::BOOL,
                Type::BOOL,
                Type::INT2,
                Type::INT8,
                Type::TEXT
            ]
        );
        assert_eq!(types(Sql::Satisfied), [] as [Type; 0]);
    }
}
