import XenAPI, sys
s = XenAPI.Session(sys.argv[1], ignore_ssl=True)
s.login_with_password("root", sys.argv[2], "1.0", "acceptance")
x = s.xenapi; vm = x.VM.get_by_name_label("testvm")[0]
assert x.VM.get_power_state(vm) == "Halted"; x.VM.start(vm, False, False)
try: x.VM.start(vm, False, False); sys.exit("double start accepted")
except XenAPI.Failure as e: assert e.details == ["VM_BAD_POWER_STATE", vm, "halted", "running"]
t = x.Async.VM.clean_shutdown(vm); tok = ""
while x.task.get_status(t) == "pending":      # "from" is a keyword: use the raw request
    tok = s.xenapi_request("event.from", (["task/" + t], tok, 5.0))["token"]
assert (x.task.get_status(t), x.task.get_result(t)) == ("success", ""); x.task.destroy(t)
assert isinstance(x.VM.get_record(vm)["memory_static_max"], str); x.session.logout()
