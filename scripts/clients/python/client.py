"""Python's XenAPI: lists, creates, starts, watches, stops and destroys a VM."""

import os

import XenAPI

TEMPLATE = "Other install media"
NAME = "client-python"

session = XenAPI.Session(os.environ["RINGWAY_URL"])
session.xenapi.login_with_password("root", os.environ["RINGWAY_PASSWORD"], "1.0", NAME)
api = session.xenapi
host = api.host.get_all()[0]
print(api.host.get_software_version(host)["product_brand"], api.host.get_name_label(host))
for record in api.VM.get_all_records().values():
    print(record["name_label"], record["power_state"])

(template,) = api.VM.get_by_name_label(TEMPLATE)
vm = api.VM.clone(template, NAME)
api.VM.provision(vm)
pool = api.pool.get_all()[0]
vdi = api.VDI.create({
    "name_label": f"{NAME} disk",
    "name_description": "",
    "SR": api.pool.get_default_SR(pool),
    "virtual_size": str(64 << 20),
    "type": "user",
    "sharable": False,
    "read_only": False,
    "other_config": {},
})
vbd = api.VBD.create({
    "VM": vm,
    "VDI": vdi,
    "userdevice": "1",
    "bootable": False,
    "mode": "RW",
    "type": "Disk",
    "empty": False,
    "other_config": {},
    "qos_algorithm_type": "",
    "qos_algorithm_params": {},
})
(network,) = api.network.get_by_name_label("Internal network")
vif = api.VIF.create({
    "VM": vm,
    "network": network,
    "device": "0",
    "MAC": "",
    "MTU": "1500",
    "other_config": {},
    "qos_algorithm_type": "",
    "qos_algorithm_params": {},
})
token = api.event_from(["vm", "vbd", "vif"], "", 10.0)["token"]
api.VM.start(vm, False, False)
changed = api.event_from(["vm", "vbd", "vif"], token, 10.0)
assert any(event["ref"] == vm for event in changed["events"]), changed
assert api.VBD.get_currently_attached(vbd) and api.VIF.get_currently_attached(vif)
record = api.VM.get_record(vm)
assert record["power_state"] == "Running", record
try:
    api.VM.start(vm, False, False)
    raise SystemExit("a VM started twice")
except XenAPI.Failure as failure:
    assert failure.details[0] == "VM_BAD_POWER_STATE", failure.details
task = api.Async.VM.hard_shutdown(vm)
while api.task.get_status(task) == "pending":
    api.event_from(["task/" + task], "", 1.0)
api.task.destroy(task)
disks = [api.VBD.get_record(one) for one in api.VM.get_VBDs(vm)]
api.VM.destroy(vm)
for disk in disks:
    if disk["type"] == "Disk":
        api.VDI.destroy(disk["VDI"])
session.xenapi.session.logout()
