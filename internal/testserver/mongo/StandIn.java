import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.util.List;

// Serves an in-memory MongoDB on a free loopback port, which it prints, until
// its standard input ends: so it never outlives the test that started it.
public class StandIn {
    public static void main(String[] args) throws Exception {
        MemoryBackend backend = new MemoryBackend();
        backend.version(new Version());
        MongoServer server = new MongoServer(backend);
        server.bind("127.0.0.1", 0);
        System.out.println(server.getLocalAddress().getPort());
        while (System.in.read() >= 0) {
        }
        server.shutdownNow();
    }

    // The wire version that the newest drivers ask for at least; the stand-in's
    // own is older.
    static class Version implements MongoVersion {
        public List<Integer> getVersionArray() {
            return List.of(4, 4, 0);
        }

        public int getWireVersion() {
            return 9;
        }
    }
}
