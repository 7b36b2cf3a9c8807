//! A change under way.

use std::collections::{BTreeMap, BTreeSet};

use model::id::Uuid;
use xenapi::table::{Class, FieldIx};
use xenapi::{ApiError, Value, codes};

use super::rollback::Rollback;
use super::tables::Tables;
use super::tombstones::Tombstone;
use super::view::{find, get};
use super::write_record::{Undo, WriteRecord};
use super::{Object, Random, Ref, View, back_references, bounds, pending_writes};

/// A change under way: what it has written so far is seen through it and by nobody else. Dropped
/// before its end it has never been.
#[derive(Debug)]
pub struct Tx<'a> {
    tables: &'a mut Tables,
    random: Random,
    /// Somebody asked for it, who is told why if it cannot be.
    asked: bool,
    undo: Vec<Undo>,
}

impl<'a> Tx<'a> {
    pub(super) fn begin(tables: &'a mut Tables, random: Random, asked: bool) -> Self {
        Self { tables, random, asked, undo: Vec::new() }
    }

    /// Everything as it is with what was written so far.
    pub fn view(&self) -> View<'_> {
        View::of(self.tables)
    }

    /// What it has written so far, in order.
    pub fn touched(&self) -> impl Iterator<Item = WriteRecord<'_>> {
        self.undo.iter().filter_map(Undo::touched)
    }

    /// The generation that it has when it ends, if it changes anything.
    pub fn generation(&self) -> u64 {
        self.tables.generation + 1
    }

    /// A new UUID.
    pub fn uuid(&self) -> Uuid {
        Uuid::from_random((self.random)())
    }

    /// Makes an object. What is not given is as the class says, and its UUID is a new one.
    ///
    /// # Errors
    /// `INVALID_VALUE`: what is given as UUID is none. `INTERNAL_ERROR`: a value does not fit its
    /// field, is of another class, or is the UUID of another object of the class.
    /// `VALUE_NOT_SUPPORTED`: it was asked for, and is too large.
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
            bounds::check_type(class, field, &value)?;
            if let Some(place) = fields.get_mut(field.at()) {
                *place = value;
            }
        }
        if self.asked {
            bounds::check_new(class, &fields)?;
        }
        let links = back_references::links(class, &fields);
        let reference = Ref::of(self.uuid());
        let age = self.tables.next_age();
        let object = Object::new(class, reference.clone(), age, fields);
        self.check_uuid(&object)?;
        self.put(object, links);
        Ok(reference)
    }

    /// Puts a value into a field. One that it has already is no change.
    ///
    /// # Errors
    /// `HANDLE_INVALID`: there is no such object. `INTERNAL_ERROR`: the value does not fit, or the
    /// field follows from others. `VALUE_NOT_SUPPORTED`: it was asked for, and the record would be
    /// too large.
    pub fn set(
        &mut self,
        reference: &Ref,
        field: impl Into<FieldIx>,
        value: Value,
    ) -> Result<(), ApiError> {
        let field = field.into();
        let object = find(self.tables, field.class(), reference)?;
        bounds::check_type(object.class, field, &value)?;
        let Some(was) = object.get(field).filter(|was| **was != value) else { return Ok(()) };
        if self.asked {
            bounds::check_set(object, field, (was, &value))?;
        }
        let (mut left, mut joined) = (Vec::new(), Vec::new());
        let set = back_references::of(field);
        if set.is_some() {
            let names =
                |value| back_references::named(value).map(Ref::from).collect::<BTreeSet<Ref>>();
            let (was, is) = (names(was), names(&value));
            left.extend(was.difference(&is).cloned());
            joined.extend(is.difference(&was).cloned());
        }
        if let Some(was) = self.tables.set(field, reference, value) {
            self.undo.push(Undo::Set(field, reference.clone(), was));
        }
        if let Some(set) = set {
            left.iter().for_each(|holder| self.leave(set, holder, reference));
            joined.iter().for_each(|holder| self.join(set, holder, reference));
        }
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

    /// Tells of an object as if it had changed.
    ///
    /// # Errors
    /// `HANDLE_INVALID`: there is no such object.
    pub fn touch(&mut self, class: &'static Class, reference: &Ref) -> Result<(), ApiError> {
        find(self.tables, class.name, reference)?;
        self.undo.push(Undo::Told(class, reference.clone()));
        Ok(())
    }

    /// Destroys an object. What names it goes on naming it, but sets of references forget it.
    ///
    /// # Errors
    /// `HANDLE_INVALID`: there is no such object.
    pub fn destroy(&mut self, class: &'static Class, reference: &Ref) -> Result<(), ApiError> {
        let object = find(self.tables, class.name, reference)?;
        for (set, holder) in back_references::links(class, &object.fields) {
            self.leave(set, &holder, reference);
        }
        if let Some(object) = self.tables.take(class.name, reference) {
            self.undo.push(Undo::Destroyed(object));
        }
        Ok(())
    }

    /// Puts an object back that was destroyed in an earlier change. It counts as a new one. If
    /// another has its UUID by now, which is what it is stored under, it stays gone.
    pub(super) fn restore(&mut self, mut object: Object) {
        let class = object.class;
        if self.tables.get(class.name, object.reference.as_str()).is_some()
            || self.view().by_uuid(class, object.uuid()).is_ok()
        {
            return;
        }
        for (set, field) in class.numbers() {
            let named = field.inverse.and_then(|(of, name)| {
                let of = xenapi::table::class(of)?;
                Some((of, of.field(name)?.0))
            });
            if let Some((of, field)) = named {
                let names = |one: &&Object| {
                    let value = one.get(field).into_iter();
                    value
                        .flat_map(back_references::named)
                        .any(|name| name == object.reference.as_str())
                };
                let view = self.view();
                let members = view.all(of).filter(names);
                let members = members.map(|one| one.reference.value()).collect();
                object.put(set.at(), Value::Set(members));
            }
        }
        let links = back_references::links(class, &object.fields);
        (object.made, object.changed) = (0, 0);
        self.tables.tombstones.remove(class.name, &object.reference);
        self.put(object, links);
    }

    /// Ends it: everybody sees it from now on. Its generation; none if it has changed nothing.
    pub(super) fn end(mut self) -> Option<u64> {
        let undo = std::mem::take(&mut self.undo);
        if undo.is_empty() {
            return None;
        }
        let generation = self.generation();
        self.tables.generation = generation;
        let touched: BTreeSet<(&'static str, Ref)> =
            undo.iter().map(|done| (done.object().0, done.object().1.clone())).collect();
        for (class, reference) in &touched {
            self.tables.stamp(class, reference, generation);
        }
        for done in &undo {
            if let Undo::Destroyed(Object { class, reference, made, .. }) = done
                // One that nobody has seen leaves nothing.
                && *made > 0
            {
                let tombstone = Tombstone { reference: reference.clone(), made: *made };
                self.tables.add_tombstone(class.name, tombstone, generation);
            }
        }
        let asked = self.asked;
        if self.tables.pending.storing && pending_writes::add(self.tables, asked, generation, &undo)
        {
            let rollback = Rollback::of(self.tables, undo);
            pending_writes::add_uncommitted(self.tables, generation, rollback);
        }
        Some(generation)
    }

    /// These objects are there, as if they had been made by it.
    pub(super) fn made(&mut self, made: Vec<Undo>) {
        self.undo = made;
    }

    /// Ends it as if it had always been so.
    pub(super) fn commit_silently(mut self) {
        self.undo.clear();
    }

    /// A new object has a UUID, and no other object of its class has it: it is stored under it.
    fn check_uuid(&self, object: &Object) -> Result<(), ApiError> {
        let (class, uuid) = (object.class, object.uuid());
        if class.field("uuid").is_some() && uuid.parse::<Uuid>().is_err() {
            return Err(codes::invalid_value("uuid", uuid));
        }
        match self.view().by_uuid(class, uuid) {
            Ok(_) => Err(codes::internal(format!("{} has an object {uuid} already", class.name))),
            Err(_) => Ok(()),
        }
    }

    /// Puts an object into its table and into the sets that gather it.
    fn put(&mut self, object: Object, links: Vec<(FieldIx, Ref)>) {
        let (class, reference) = (object.class, object.reference.clone());
        self.tables.put(object);
        self.undo.push(Undo::Made(class, reference.clone()));
        for (set, holder) in links {
            self.join(set, &holder, &reference);
        }
    }

    /// A set of references gets a member, if its holder is there.
    fn join(&mut self, set: FieldIx, holder: &Ref, member: &Ref) {
        if let Some(members) = self.tables.members(set, holder) {
            members.push(member.value());
            self.undo.push(Undo::Joined(set, holder.clone(), member.value()));
        }
    }

    /// A set of references loses a member, if its holder is there.
    fn leave(&mut self, set: FieldIx, holder: &Ref, member: &Ref) {
        let Some(members) = self.tables.members(set, holder) else { return };
        let is = |value: &Value| matches!(value, Value::Str(text) if text == member.as_str());
        if let Some(at) = members.iter().position(is) {
            let value = members.remove(at);
            self.undo.push(Undo::Left(set, holder.clone(), at, value));
        }
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        while let Some(done) = self.undo.pop() {
            done.apply(self.tables);
        }
    }
}
