//! A change under way.

use std::collections::{BTreeMap, BTreeSet};

use model::id::Uuid;
use xenapi::table::{Class, FieldIx};
use xenapi::typed::fits;
use xenapi::{ApiError, Value, codes};

use super::tables::{Gone, Tables};
use super::view::{find, get};
use super::{Object, Random, Ref, View, inverse};

/// How to take back what was done.
#[derive(Debug)]
enum Undo {
    Made(&'static Class, Ref),
    Set { class: &'static str, reference: Ref, at: usize, was: Value },
    Destroyed(Object),
}

/// A change under way: what it has written so far is seen through it and by nobody else. Dropped
/// before its end it has never been.
#[derive(Debug)]
pub struct Tx<'a> {
    tables: &'a mut Tables,
    random: Random,
    undo: Vec<Undo>,
    touched: BTreeSet<(&'static str, Ref)>,
}

impl<'a> Tx<'a> {
    pub(super) fn begin(tables: &'a mut Tables, random: Random) -> Self {
        Self { tables, random, undo: Vec::new(), touched: BTreeSet::new() }
    }

    /// Everything as it is with what was written so far.
    pub fn view(&self) -> View<'_> {
        View::of(self.tables)
    }

    /// Classes and references of what was made, changed or destroyed so far.
    pub fn touched(&self) -> impl Iterator<Item = (&'static str, &Ref)> {
        self.touched.iter().map(|(class, reference)| (*class, reference))
    }

    /// A new UUID.
    pub fn uuid(&self) -> Uuid {
        Uuid::from_random((self.random)())
    }

    /// Makes an object. What is not given is as the class says, and its UUID is a new one.
    ///
    /// # Errors
    /// `INTERNAL_ERROR`: a value does not fit its field, or is of another class.
    pub fn create(
        &mut self,
        class: &'static Class,
        given: Vec<(FieldIx, Value)>,
    ) -> Result<Ref, ApiError> {
        let mut fields: Vec<Value> = class.fields.iter().map(|field| field.initial()).collect();
        if let Some((uuid, _)) = class.field("uuid")
            && let Some(place) = fields.get_mut(uuid.at())
        {
            *place = Value::text(self.uuid().to_string());
        }
        for (field, value) in given {
            check(class, field, &value)?;
            if let Some(place) = fields.get_mut(field.at()) {
                *place = value;
            }
        }
        let reference = Ref::of(self.uuid());
        let age = self.tables.next_age();
        let named: Vec<(FieldIx, Value)> = class
            .numbers()
            .zip(&fields)
            .filter_map(|((field, _), value)| inverse::of(field).map(|_| (field, value.clone())))
            .collect();
        self.tables.put(Object::new(class, reference.clone(), age, fields));
        self.undo.push(Undo::Made(class, reference.clone()));
        self.touched.insert((class.name, reference.clone()));
        for (field, value) in named {
            self.follow(field, &reference, &Value::Set(Vec::new()), &value);
        }
        Ok(reference)
    }

    /// Puts a value into a field. One that it has already is no change.
    ///
    /// # Errors
    /// `HANDLE_INVALID`: there is no such object. `INTERNAL_ERROR`: the value does not fit.
    pub fn set(
        &mut self,
        reference: &Ref,
        field: impl Into<FieldIx>,
        value: Value,
    ) -> Result<(), ApiError> {
        let field = field.into();
        let object = find(self.tables, field.class(), reference)?;
        check(object.class, field, &value)?;
        if object.get(field) == Some(&value) {
            return Ok(());
        }
        let class = object.class.name;
        let Some(was) = self.put(class, reference, field.at(), value.clone()) else {
            return Ok(());
        };
        self.follow(field, reference, &was, &value);
        Ok(())
    }

    /// Changes one key of a map: puts a value there, or takes it away.
    ///
    /// # Errors
    /// As [`Tx::set`].
    pub fn set_key(
        &mut self,
        reference: &Ref,
        field: impl Into<FieldIx>,
        key: &str,
        value: Option<Value>,
    ) -> Result<(), ApiError> {
        let field = field.into();
        let mut members = match get(self.tables, reference, field)? {
            Value::Map(members) => members.clone(),
            _ => BTreeMap::new(),
        };
        match value {
            Some(value) => drop(members.insert(key.to_owned(), value)),
            None => drop(members.remove(key)),
        }
        self.set(reference, field, Value::Map(members))
    }

    /// Destroys an object. What names it goes on naming it, but sets of references forget it.
    ///
    /// # Errors
    /// `HANDLE_INVALID`: there is no such object.
    pub fn destroy(&mut self, class: &'static Class, reference: &Ref) -> Result<(), ApiError> {
        let object = find(self.tables, class.name, reference)?;
        let fields = class.numbers().zip(&object.fields);
        let named = fields.filter(|((field, _), _)| inverse::of(*field).is_some());
        let named: Vec<_> = named.map(|((field, _), value)| (field, value.clone())).collect();
        for (field, value) in named {
            self.follow(field, reference, &value, &Value::Set(Vec::new()));
        }
        if let Some(object) = self.tables.take(class.name, reference) {
            self.undo.push(Undo::Destroyed(object));
        }
        self.touched.insert((class.name, reference.clone()));
        Ok(())
    }

    /// Ends it: everybody sees it from now on. Its generation; none if it has changed nothing.
    pub(super) fn end(mut self) -> Option<u64> {
        let touched = std::mem::take(&mut self.touched);
        let undo = std::mem::take(&mut self.undo);
        if touched.is_empty() {
            return None;
        }
        let generation = self.tables.generation + 1;
        self.tables.generation = generation;
        for (class, reference) in &touched {
            self.tables.stamp(class, reference, generation);
        }
        let gone = undo.into_iter().filter_map(|done| match done {
            // One that nobody has seen leaves nothing.
            Undo::Destroyed(object) if object.made > 0 => Some(object),
            _ => None,
        });
        for Object { class, reference, made, .. } in gone {
            self.tables.bury(Gone { class, reference, made }, generation);
        }
        Some(generation)
    }

    /// A field has named `was` and names `is`: the sets that gather it follow.
    fn follow(&mut self, field: FieldIx, reference: &Ref, was: &Value, is: &Value) {
        let Some(set) = inverse::of(field) else { return };
        let (was, is) = (inverse::named(was), inverse::named(is));
        for one in was.iter().filter(|one| !is.contains(one)) {
            self.gather(set, &Ref::from(*one), |members| {
                members.retain(|member| member != &reference.value());
            });
        }
        for one in is.iter().filter(|one| !was.contains(one)) {
            self.gather(set, &Ref::from(*one), |members| members.push(reference.value()));
        }
    }

    /// Changes a set of references of an object, if it is there.
    fn gather(&mut self, set: FieldIx, holder: &Ref, change: impl FnOnce(&mut Vec<Value>)) {
        let Some(object) = self.tables.get(set.class(), holder.as_str()) else { return };
        let class = object.class.name;
        let Some(Value::Set(members)) = object.get(set) else { return };
        let mut members = members.clone();
        change(&mut members);
        let _ = self.put(class, holder, set.at(), Value::Set(members));
    }

    /// Puts a value into a field of an object that is there; what was there.
    fn put(
        &mut self,
        class: &'static str,
        reference: &Ref,
        at: usize,
        value: Value,
    ) -> Option<Value> {
        let was = self.tables.set(class, reference, at, value)?;
        let reference = reference.clone();
        self.touched.insert((class, reference.clone()));
        self.undo.push(Undo::Set { class, reference, at, was: was.clone() });
        Some(was)
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        while let Some(done) = self.undo.pop() {
            match done {
                Undo::Made(class, reference) => drop(self.tables.take(class.name, &reference)),
                Undo::Set { class, reference, at, was } => {
                    drop(self.tables.set(class, &reference, at, was));
                }
                Undo::Destroyed(object) => self.tables.put(object),
            }
        }
    }
}

/// The field is one of the class, and the value is one of its type.
fn check(class: &'static Class, field: FieldIx, value: &Value) -> Result<(), ApiError> {
    match class.field_at(field) {
        Some(of) if fits(value, &of.ty) => Ok(()),
        Some(of) => {
            let what = format!("{}.{} cannot hold {value:?}", class.name, of.name);
            Err(codes::internal(what))
        }
        None => {
            let what = format!("{} has no field of {}", class.name, field.class());
            Err(codes::internal(what))
        }
    }
}
