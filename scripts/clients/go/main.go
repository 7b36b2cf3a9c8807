// terra-farm's go-xen-api-client: lists, creates, starts, stops and destroys a VM.
package main

import (
	"fmt"
	"log"
	"os"

	xenapi "github.com/terra-farm/go-xen-api-client"
)

const (
	name     = "client-go"
	template = "Other install media"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return value
}

func done(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func main() {
	xapi := must(xenapi.NewClient(os.Getenv("RINGWAY_URL"), nil))
	password := os.Getenv("RINGWAY_PASSWORD")
	session := must(xapi.Session.LoginWithPassword("root", password, "1.0", name))
	for _, record := range must(xapi.VM.GetAllRecords(session)) {
		fmt.Println(record.NameLabel, record.PowerState)
	}
	for _, record := range must(xapi.Host.GetAllRecords(session)) {
		fmt.Println(record.NameLabel, record.SoftwareVersion["xapi"])
	}
	templates := must(xapi.VM.GetByNameLabel(session, template))
	vm := must(xapi.VM.Clone(session, templates[0], name))
	done(xapi.VM.Provision(session, vm))
	pools := must(xapi.Pool.GetAll(session))
	sr := must(xapi.Pool.GetDefaultSR(session, pools[0]))
	vdi := must(xapi.VDI.Create(session, xenapi.VDIRecord{
		NameLabel:   name + " disk",
		SR:          sr,
		VirtualSize: 64 << 20,
		Type:        xenapi.VdiTypeUser,
	}))
	vbd := must(xapi.VBD.Create(session, xenapi.VBDRecord{
		VM:         vm,
		VDI:        vdi,
		Userdevice: "1",
		Mode:       xenapi.VbdModeRW,
		Type:       xenapi.VbdTypeDisk,
	}))
	networks := must(xapi.Network.GetByNameLabel(session, "Internal network"))
	vif := must(xapi.VIF.Create(session, xenapi.VIFRecord{
		VM:          vm,
		Network:     networks[0],
		Device:      "0",
		LockingMode: xenapi.VifLockingModeNetworkDefault,
	}))
	done(xapi.VM.Start(session, vm, false, false))
	// This library cannot read events: its Event.From expects a list, and xapi answers with a record.
	if !must(xapi.VBD.GetCurrentlyAttached(session, vbd)) {
		log.Panic("the disk is not attached")
	}
	fmt.Println(must(xapi.VIF.GetRecord(session, vif)).MAC)
	fmt.Println(must(xapi.VM.GetRecord(session, vm)).PowerState)
	done(xapi.VM.HardShutdown(session, vm))
	slots := must(xapi.VM.GetVBDs(session, vm))
	var disks []xenapi.VDIRef
	for _, slot := range slots {
		record := must(xapi.VBD.GetRecord(session, slot))
		if record.Type == xenapi.VbdTypeDisk {
			disks = append(disks, record.VDI)
		}
	}
	done(xapi.VM.Destroy(session, vm))
	for _, disk := range disks {
		done(xapi.VDI.Destroy(session, disk))
	}
	done(xapi.Session.Logout(session))
}
