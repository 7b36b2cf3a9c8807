//! Selects records by comparing parameters with columns.

use xenapi::client::Record;

use crate::columns::Column;
use crate::error::XeError;
use crate::xe::Tables;

/// Tests that a record must pass, all of them.
#[derive(Debug)]
pub(crate) struct Filter(Vec<Test>);

#[derive(Debug)]
struct Test {
    column: Column,
    filter_test: FilterTest,
    value: String,
}

#[derive(Debug)]
enum FilterTest {
    /// Compares the text of the column.
    Text,
    /// Compares one member of a map.
    Member(String),
    /// Tests membership in a set.
    Contains,
}

impl Filter {
    /// Parses parameters: `column=text`, `map:key=text`, `set:contains=text`.
    pub(crate) fn read(params: &[(&str, &str)], columns: &[Column]) -> Result<Self, XeError> {
        params
            .iter()
            .map(|(name, value)| test(name, value, columns))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns the classes whose records the tests need.
    pub(crate) fn needs(&self) -> Vec<&'static str> {
        self.0.iter().flat_map(|test| test.column.needs()).collect()
    }

    /// Returns whether a record passes all tests.
    pub(crate) fn admits(&self, record: &Record, tables: &Tables) -> bool {
        self.0.iter().all(|test| test.admits(record, tables))
    }

    /// Returns an expression for the server that admits all matching records, and few others.
    pub(crate) fn expression(&self) -> Option<String> {
        let plain = |test: &&Test| {
            let exact = matches!(test.column.field, "uuid" | "name_label") && test.is_own();
            exact && matches!(test.filter_test, FilterTest::Text) && !test.value.contains('"')
        };
        let terms = self.0.iter().filter(plain);
        let terms: Vec<_> = terms
            .map(|test| {
                // A UUID is in lower case on the wire.
                let value = if test.column.any_case() {
                    test.value.to_ascii_lowercase()
                } else {
                    test.value.clone()
                };
                format!("(field \"{}\"=\"{value}\")", test.column.field)
            })
            .collect();
        let text = terms.join(" and ");
        (!terms.is_empty() && text.len() <= xenapi::filter::MAX_BYTES).then_some(text)
    }
}

impl Test {
    /// Returns whether the column has the name of its field.
    fn is_own(&self) -> bool {
        self.column.is(self.column.field)
    }

    fn admits(&self, record: &Record, tables: &Tables) -> bool {
        let equal = |text: &str| {
            if self.column.any_case() {
                text.eq_ignore_ascii_case(&self.value)
            } else {
                text == self.value
            }
        };
        match &self.filter_test {
            FilterTest::Text => equal(&self.column.text(record, tables)),
            FilterTest::Member(key) => {
                let members = self.column.members(record, tables);
                members.iter().any(|(name, value)| name == key && equal(value))
            }
            FilterTest::Contains => {
                self.column.members(record, tables).iter().any(|(member, _)| equal(member))
            }
        }
    }
}

fn test(name: &str, value: &str, columns: &[Column]) -> Result<Test, XeError> {
    let value = value.to_owned();
    if let Some(column) = columns.iter().find(|column| column.is(name)) {
        return Ok(Test { column: column.clone(), filter_test: FilterTest::Text, value });
    }
    let (column, key) = member(name, columns)?;
    let filter_test = match column.ty() {
        xenapi::table::Type::Map(..) => FilterTest::Member(key.to_owned()),
        _ if key == "contains" => FilterTest::Contains,
        _ => {
            let name = &column.name;
            return Err(XeError::error(format!("'{name}' is a set: use {name}:contains={value}")));
        }
    };
    Ok(Test { column: column.clone(), filter_test, value })
}

/// Splits a name into a map or set column and the key after a colon, or after a dash (old form).
pub(crate) fn member<'a, 'n>(
    name: &'n str,
    columns: &'a [Column],
) -> Result<(&'a Column, &'n str), XeError> {
    let unknown = || XeError::error(format!("Unknown field '{name}'"));
    if let Some((stem, key)) = name.split_once(':') {
        let column = columns.iter().find(|column| column.is(stem)).ok_or_else(unknown)?;
        if !has_members(column) {
            return Err(XeError::error(format!("'{stem}' is neither a map nor a set")));
        }
        return Ok((column, key));
    }
    let fits = |column: &&Column| {
        has_members(column)
            && name.get(..column.name.len()).is_some_and(|stem| column.is(stem))
            && name.get(column.name.len()..).is_some_and(|rest| rest.starts_with('-'))
    };
    // Use the longest match: `other` and `other-config` are both maps.
    let column = columns.iter().filter(fits).max_by_key(|column| column.name.len());
    let column = column.ok_or_else(unknown)?;
    Ok((column, name.get(column.name.len() + 1..).unwrap_or_default()))
}

fn has_members(column: &Column) -> bool {
    matches!(column.ty(), xenapi::table::Type::Map(..) | xenapi::table::Type::Set(_))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use xenapi::Value;
    use xenapi::table::class;

    use super::*;
    use crate::columns;

    fn filter(params: &[(&str, &str)]) -> Result<Filter, XeError> {
        Filter::read(params, &columns::of(class("VM").unwrap()))
    }

    fn vm() -> Record {
        let pairs = [("k".to_owned(), Value::text("v")), ("a b".to_owned(), Value::text("2"))];
        let fields = [
            ("uuid", Value::text("6f1c")),
            ("name_label", Value::text("Web")),
            ("power_state", Value::text("Running")),
            ("other_config", Value::Map(pairs.into())),
            ("tags", Value::Set(vec![Value::text("blue"), Value::text("x")])),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value));
        Record::of(Value::Map(BTreeMap::from(fields))).unwrap()
    }

    #[test]
    fn records_that_are_meant() {
        for (params, admitted) in [
            (&[][..], true),
            (&[("uuid", "6F1C")], true),
            (&[("name-label", "Web")], true),
            (&[("name_label", "Web")], true),
            (&[("name-label", "web")], false),
            (&[("power-state", "running")], true),
            (&[("power-state", "Running")], false),
            (&[("power-state", "running"), ("name-label", "x")], false),
            (&[("other-config:k", "v")], true),
            (&[("other-config:a b", "2")], true),
            (&[("other-config-k", "v")], true),
            (&[("other-config:k", "x")], false),
            (&[("other-config:z", "")], false),
            (&[("tags:contains", "blue")], true),
            (&[("tags:contains", "blu")], false),
            (&[("tags", "blue; x")], true),
        ] {
            let filter = filter(params).unwrap();
            assert_eq!(filter.admits(&vm(), &Tables::default()), admitted, "{params:?}");
        }
    }

    #[test]
    fn what_is_no_filter() {
        for (name, why) in [
            ("nonsense", "Unknown field 'nonsense'"),
            ("nonsense:k", "Unknown field 'nonsense:k'"),
            ("name-label:k", "neither a map nor a set"),
            ("tags:has", "use tags:contains="),
        ] {
            let error = filter(&[(name, "v")]).unwrap_err().errors();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_server_leaves_out_what_it_can() {
        let expression = |params: &[(&str, &str)]| filter(params).unwrap().expression();
        assert_eq!(expression(&[("power-state", "running")]), None);
        assert_eq!(expression(&[("name-label", "a\"b")]), None);
        assert_eq!(
            expression(&[("uuid", "6F1C"), ("tags:contains", "x"), ("name-label", "Web")]).unwrap(),
            "(field \"uuid\"=\"6f1c\") and (field \"name_label\"=\"Web\")"
        );
        let class = class("VM").unwrap();
        let text = expression(&[("uuid", "6F1C"), ("name-label", "Web")]).unwrap();
        assert!(xenapi::filter::Filter::parse(&text, class).is_ok());
    }
}
