// XenServer's Java SDK: lists, creates, starts, watches, stops and destroys a VM.

import com.xensource.xenapi.Connection;
import com.xensource.xenapi.Event;
import com.xensource.xenapi.EventBatch;
import com.xensource.xenapi.Host;
import com.xensource.xenapi.Network;
import com.xensource.xenapi.Pool;
import com.xensource.xenapi.SR;
import com.xensource.xenapi.Session;
import com.xensource.xenapi.Task;
import com.xensource.xenapi.Types;
import com.xensource.xenapi.VBD;
import com.xensource.xenapi.VDI;
import com.xensource.xenapi.VIF;
import com.xensource.xenapi.VM;
import java.net.URL;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Set;

public final class Client {
    private static final String NAME = "client-java";
    private static final String TEMPLATE = "Other install media";

    public static void main(String[] words) throws Exception {
        Connection xapi = new Connection(new URL(System.getenv("RINGWAY_URL")));
        Session.loginWithPassword(xapi, "root", System.getenv("RINGWAY_PASSWORD"), "1.3");
        for (VM.Record record : VM.getAllRecords(xapi).values()) {
            System.out.println(record.nameLabel + " " + record.powerState);
        }
        for (Host.Record record : Host.getAllRecords(xapi).values()) {
            System.out.println(record.nameLabel + " " + record.APIVersionMinor);
        }
        for (SR.Record record : SR.getAllRecords(xapi).values()) {
            System.out.println(record.nameLabel + " " + record.physicalSize);
        }
        VM template = VM.getByNameLabel(xapi, TEMPLATE).iterator().next();
        VM vm = template.createClone(xapi, NAME);
        vm.provision(xapi);
        VDI.Record disk = new VDI.Record();
        disk.nameLabel = NAME + " disk";
        disk.SR = Pool.getAll(xapi).iterator().next().getDefaultSR(xapi);
        disk.virtualSize = 64L << 20;
        disk.type = Types.VdiType.USER;
        disk.otherConfig = new HashMap<>();
        VDI vdi = VDI.create(xapi, disk);
        VBD.Record slot = new VBD.Record();
        slot.VM = vm;
        slot.VDI = vdi;
        slot.userdevice = "1";
        slot.mode = Types.VbdMode.RW;
        slot.type = Types.VbdType.DISK;
        slot.otherConfig = new HashMap<>();
        slot.qosAlgorithmParams = new HashMap<>();
        VBD vbd = VBD.create(xapi, slot);
        VIF.Record card = new VIF.Record();
        card.VM = vm;
        card.network = Network.getByNameLabel(xapi, "Internal network").iterator().next();
        card.device = "0";
        card.MAC = "";
        card.MTU = 1500L;
        card.otherConfig = new HashMap<>();
        card.qosAlgorithmParams = new HashMap<>();
        card.lockingMode = Types.VifLockingMode.NETWORK_DEFAULT;
        VIF vif = VIF.create(xapi, card);
        Set<String> classes = Set.of("vm");
        EventBatch before = Event.from(xapi, classes, "", 10.0);
        vm.start(xapi, false, false);
        EventBatch after = Event.from(xapi, classes, before.token, 10.0);
        if (after.events.isEmpty()) {
            throw new IllegalStateException("no event tells that the VM started");
        }
        if (!vbd.getCurrentlyAttached(xapi) || !vif.getCurrentlyAttached(xapi)) {
            throw new IllegalStateException("a device is not attached");
        }
        System.out.println(vm.getRecord(xapi).powerState);
        vm.hardShutdown(xapi);
        Set<VDI> disks = new HashSet<>();
        for (VBD one : vm.getVBDs(xapi)) {
            VBD.Record record = one.getRecord(xapi);
            if (record.type == Types.VbdType.DISK) {
                disks.add(record.VDI);
            }
        }
        Task task = vm.destroyAsync(xapi);
        while (task.getStatus(xapi) == Types.TaskStatusType.PENDING) {
            Event.from(xapi, Set.of("task"), "", 1.0);
        }
        task.destroy(xapi);
        for (VDI one : disks) {
            one.destroy(xapi);
        }
        Session.logout(xapi);
    }
}
