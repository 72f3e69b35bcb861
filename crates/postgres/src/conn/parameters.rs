//! The types of the statements' parameters. Statements that are not prepared are sent with these types, which saves a
//! round trip.

use std::sync::LazyLock;

use tokio_postgres::types::Type;

use crate::conn::statements::Sql;

/// The parameter types of each statement. In the text, every parameter is followed by its type, as in `$1::uuid[]`.
static PARAMETER_TYPES: LazyLock<Vec<Vec<Type>>> =
    LazyLock::new(|| Sql::ALL.iter().map(|sql| parse_parameter_types(sql.text())).collect());

/// Returns the types of a statement's parameters, in order.
pub(crate) fn parameter_types(sql: Sql) -> &'static [Type] {
    PARAMETER_TYPES.get(sql as usize).map_or(&[], Vec::as_slice)
}

fn parse_parameter_types(text: &str) -> Vec<Type> {
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
        if let Some(parameter) = number.checked_sub(1).and_then(|index| types.get_mut(index)) {
            *parameter = type_by_name(name, rest.starts_with("[]"));
        }
    }
    types
}

fn type_by_name(name: &str, is_array: bool) -> Type {
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
    fn parameters_of_all_statements_have_types() {
        for sql in Sql::ALL {
            let types = parameter_types(*sql);
            assert!(!types.contains(&Type::UNKNOWN), "{sql:?}: {types:?}");
            // also the last parameter has a type
            let further = format!("${}", types.len() + 1);
            assert!(!sql.text().contains(&further), "{sql:?}: {further}");
        }
        assert_eq!(
            parameter_types(Sql::Fence),
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
                Type::TEXT,
                Type::UUID_ARRAY
            ]
        );
        assert_eq!(parameter_types(Sql::SatisfiedWaits), [] as [Type; 0]);
    }
}
