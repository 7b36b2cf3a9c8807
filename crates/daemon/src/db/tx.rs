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

/// A change under way. Only its own view sees its writes until it ends. A drop before the end
/// undoes them.
#[derive(Debug)]
pub struct Tx<'a> {
    tables: &'a mut Tables,
    random: Random,
    /// Whether the change was requested. A requested change has size limits and can be rolled back.
    asked: bool,
    undo: Vec<Undo>,
}

impl<'a> Tx<'a> {
    pub(super) fn begin(tables: &'a mut Tables, random: Random, asked: bool) -> Self {
        Self { tables, random, asked, undo: Vec::new() }
    }

    /// Returns a view that includes the writes so far.
    pub fn view(&self) -> View<'_> {
        View::of(self.tables)
    }

    /// Returns the writes so far, in order.
    pub fn touched(&self) -> impl Iterator<Item = WriteRecord<'_>> {
        self.undo.iter().filter_map(Undo::touched)
    }

    /// Returns the generation that the change gets when it ends, if it changes anything.
    pub fn generation(&self) -> u64 {
        self.tables.generation + 1
    }

    /// Returns a new random UUID.
    pub fn uuid(&self) -> Uuid {
        Uuid::from_random((self.random)())
    }

    /// Creates an object. Fields that are not given have the defaults of the class, and a new UUID.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the given UUID is invalid, `DB_UNIQUENESS_CONSTRAINT_VIOLATION` if another
    /// object has it. `INTERNAL_ERROR` if a value does not fit its field, or a field belongs to
    /// another class. `VALUE_NOT_SUPPORTED` if a requested change makes the record too large.
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

    /// Sets a field. An equal value is no change.
    ///
    /// # Errors
    /// `HANDLE_INVALID` if the object does not exist. `INTERNAL_ERROR` if the value does not fit or
    /// the field is derived. `VALUE_NOT_SUPPORTED` if a requested change makes the record too
    /// large.
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

    /// Sets or removes one key of a map field.
    ///
    /// # Errors
    /// Same as [`Tx::set`].
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

    /// Publishes an object as if it had changed.
    ///
    /// # Errors
    /// `HANDLE_INVALID` if the object does not exist.
    pub fn touch(&mut self, class: &'static Class, reference: &Ref) -> Result<(), ApiError> {
        find(self.tables, class.name, reference)?;
        self.undo.push(Undo::Touched(class, reference.clone()));
        Ok(())
    }

    /// Destroys an object. References to it stay in fields, but derived sets drop it.
    ///
    /// # Errors
    /// `HANDLE_INVALID` if the object does not exist.
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

    /// Restores an object that an earlier change destroyed. It counts as newly created. If another
    /// object has its UUID by now, it stays destroyed, because rows are stored by UUID.
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

    /// Ends the change and makes it visible. Returns its generation, or `None` if nothing changed.
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
                // An object created in this change was never visible and needs no tombstone.
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

    /// Treats these loaded objects as created by this change.
    pub(super) fn made(&mut self, made: Vec<Undo>) {
        self.undo = made;
    }

    /// Ends the change without a new generation.
    pub(super) fn commit_silently(mut self) {
        self.undo.clear();
    }

    /// Checks that a new object has a valid UUID that is unique in its class. Rows are stored by
    /// UUID.
    fn check_uuid(&self, object: &Object) -> Result<(), ApiError> {
        let (class, uuid) = (object.class, object.uuid());
        if class.field("uuid").is_some() && uuid.parse::<Uuid>().is_err() {
            return Err(codes::invalid_value("uuid", uuid));
        }
        match self.view().by_uuid(class, uuid) {
            Ok(_) => Err(codes::db_uniqueness(class.name, "uuid", uuid)),
            Err(_) => Ok(()),
        }
    }

    /// Adds an object to its table and to the derived sets that contain it.
    fn put(&mut self, object: Object, links: Vec<(FieldIx, Ref)>) {
        let (class, reference) = (object.class, object.reference.clone());
        self.tables.put(object);
        self.undo.push(Undo::Made(class, reference.clone()));
        for (set, holder) in links {
            self.join(set, &holder, &reference);
        }
    }

    /// Adds a member to a derived set, if the holder exists.
    fn join(&mut self, set: FieldIx, holder: &Ref, member: &Ref) {
        if let Some(members) = self.tables.members(set, holder) {
            members.push(member.value());
            self.undo.push(Undo::Joined(set, holder.clone(), member.value()));
        }
    }

    /// Removes a member from a derived set, if the holder exists.
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
